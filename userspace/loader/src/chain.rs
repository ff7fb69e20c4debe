//! Messages of errors with all their causes, each once.

use std::error::Error;

/// Returns an error's message followed by those of its causes that it does not contain. Many errors print
/// their source, and many, such as aya's, do not.
pub fn chain(error: &(dyn Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(this) = cause {
        let message = this.to_string();
        if !text.contains(&message) {
            text = format!("{text}: {message}");
        }
        cause = this.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;

    #[derive(Debug, thiserror::Error)]
    enum Outer {
        #[error("reading x: {0}")]
        Shown(#[source] io::Error),
        #[error("reading x")]
        Hidden(#[source] io::Error),
    }

    #[test]
    fn each_cause_is_told_once() {
        let missing = || io::Error::from_raw_os_error(2);
        let expected = "reading x: No such file or directory (os error 2)";
        assert_eq!(chain(&Outer::Shown(missing())), expected);
        assert_eq!(chain(&Outer::Hidden(missing())), expected);
    }
}
