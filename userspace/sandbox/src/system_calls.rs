//! The system calls of the daemon and of `sumac-agg serve`, by purpose.
//!
//! Not among them, on purpose: those that execute programs, change users, trace processes, mount, enter or
//! create namespaces, load modules, and io_uring, userfaultfd, perf events and keys.

macro_rules! numbers {
    ($($name:ident)*) => { &[$(libc::$name),*] };
}

/// Calls that newer architectures do not have.
#[cfg(target_arch = "x86_64")]
const LEGACY: &[i64] = numbers![
    SYS_access SYS_chmod SYS_dup2 SYS_epoll_wait SYS_getdents SYS_mkdir SYS_open SYS_pipe SYS_poll SYS_readlink SYS_rename
    SYS_rmdir SYS_select SYS_stat SYS_lstat SYS_symlink SYS_time SYS_unlink SYS_arch_prctl
];
#[cfg(not(target_arch = "x86_64"))]
const LEGACY: &[i64] = &[];

const MEMORY: &[i64] = numbers![
    SYS_brk SYS_madvise SYS_membarrier SYS_memfd_create SYS_mincore SYS_mlock SYS_mlock2 SYS_mmap SYS_mprotect SYS_mremap
    SYS_msync SYS_munlock SYS_munmap
];

const THREADS: &[i64] = numbers![
    SYS_clone SYS_clone3 SYS_exit SYS_exit_group SYS_futex SYS_getcpu SYS_get_robust_list SYS_gettid SYS_rseq
    SYS_sched_getaffinity SYS_sched_getparam SYS_sched_getscheduler SYS_sched_get_priority_max SYS_sched_get_priority_min
    SYS_sched_setaffinity SYS_sched_yield SYS_set_robust_list SYS_set_tid_address
];

const SIGNALS: &[i64] = numbers![
    SYS_kill SYS_pidfd_open SYS_restart_syscall SYS_rt_sigaction SYS_rt_sigpending SYS_rt_sigprocmask SYS_rt_sigreturn
    SYS_rt_sigsuspend SYS_rt_sigtimedwait SYS_sigaltstack SYS_signalfd4 SYS_tgkill
];

const TIME: &[i64] = numbers![
    SYS_clock_getres SYS_clock_gettime SYS_clock_nanosleep SYS_gettimeofday SYS_nanosleep SYS_timerfd_create
    SYS_timerfd_gettime SYS_timerfd_settime
];

const FILES: &[i64] = numbers![
    SYS_close SYS_close_range SYS_dup SYS_dup3 SYS_faccessat SYS_faccessat2 SYS_fadvise64 SYS_fallocate SYS_fchmod
    SYS_fchmodat SYS_fcntl SYS_fdatasync SYS_flock SYS_fstat SYS_fstatfs SYS_fsync SYS_ftruncate SYS_getcwd SYS_getdents64
    SYS_ioctl SYS_lseek SYS_mkdirat SYS_newfstatat SYS_openat SYS_openat2 SYS_pipe2 SYS_pread64 SYS_preadv SYS_pwrite64
    SYS_pwritev SYS_read SYS_readlinkat SYS_readv SYS_renameat SYS_renameat2 SYS_statfs SYS_statx SYS_symlinkat SYS_umask SYS_unlinkat
    SYS_write SYS_writev
];

const EVENTS: &[i64] = numbers![
    SYS_epoll_create1 SYS_epoll_ctl SYS_epoll_pwait SYS_epoll_pwait2 SYS_eventfd2 SYS_ppoll SYS_pselect6
];

const SOCKETS: &[i64] = numbers![
    SYS_accept SYS_accept4 SYS_bind SYS_connect SYS_getpeername SYS_getsockname SYS_getsockopt SYS_listen SYS_recvfrom
    SYS_recvmmsg SYS_recvmsg SYS_sendmmsg SYS_sendmsg SYS_sendto SYS_setsockopt SYS_shutdown SYS_socket SYS_socketpair
];

const SELF: &[i64] = numbers![
    SYS_capget SYS_getegid SYS_geteuid SYS_getgid SYS_getgroups SYS_getpid SYS_getppid SYS_getrandom SYS_getresgid
    SYS_getresuid SYS_getrlimit SYS_getrusage SYS_getuid SYS_prctl SYS_prlimit64 SYS_setrlimit SYS_sysinfo SYS_uname
];

const EBPF: &[i64] = numbers![SYS_bpf];

const GROUPS: [&[i64]; 10] = [LEGACY, MEMORY, THREADS, SIGNALS, TIME, FILES, EVENTS, SOCKETS, SELF, EBPF];

/// Returns the numbers of all allowed system calls.
pub(crate) fn allowed() -> impl Iterator<Item = i64> {
    GROUPS.into_iter().flatten().copied()
}
