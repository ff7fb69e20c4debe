//! The limit of open files.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Raises the soft limit of open files to the hard one. Returns how many more this process may open, so that
/// what others have it open is limited before the kernel refuses it.
pub fn raise_open_files() -> u64 {
    let limit = getrlimit(Resource::Nofile);
    let raised = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit });
    let most = if raised.is_ok() { limit.maximum } else { limit.current };
    let open = std::fs::read_dir("/proc/self/fd").map_or(0, Iterator::count);
    most.unwrap_or(u64::MAX).saturating_sub(open as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn open_files_count_and_the_soft_limit_is_the_hard_one() {
        let before = raise_open_files();
        let limit = getrlimit(Resource::Nofile);
        assert_eq!(limit.current, limit.maximum);
        let files: Vec<_> = (0..20).map(|_| std::fs::File::open("/proc/self/stat").unwrap()).collect();
        // Other tests of this process open some, too.
        assert!(raise_open_files() < before - 10, "{before}");
        drop(files);
    }
}
