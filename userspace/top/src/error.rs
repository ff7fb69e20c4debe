//! The reasons for which nothing is shown.

#[derive(Debug, thiserror::Error)]
pub enum TopError {
    #[error("standard output is no terminal; give --once or --json")]
    NoTerminal,
    #[error("cannot use the terminal: {0}; give --once or --json")]
    Terminal(std::io::Error),
    #[error("cannot print the sample: {0}")]
    Print(#[from] std::io::Error),
    #[error("cannot start the thread that takes samples: {0}")]
    Thread(std::io::Error),
    #[error("{0}")]
    Sample(String),
}
