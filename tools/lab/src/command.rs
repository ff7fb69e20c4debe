//! Other programs, run to their end, with errors that show what was run and what it said.

use std::io::Write;
use std::process::{Command, ExitStatus, Stdio};

/// The failure of an external command.
#[derive(Debug, thiserror::Error)]
pub enum CommandError {
    /// It could not be started.
    #[error(
        "running `{line}`: {source}; is {program} installed (tools/setup.sh installs what the lab needs)?"
    )]
    Start {
        /// The whole command line.
        line: String,
        program: String,
        /// The system's error.
        source: std::io::Error,
    },
    /// It ran and failed.
    #[error("`{line}` ended with {status}: {stderr}")]
    Failed {
        /// The whole command line, and its input when it had one.
        line: String,
        status: ExitStatus,
        /// The text of its messages.
        stderr: String,
    },
    /// Its output is not what it should be.
    #[error("`{line}` printed something that is not understood: {why}")]
    Output {
        /// The whole command line.
        line: String,
        /// The expectation.
        why: String,
    },
}

/// Runs a command to its end and returns what it printed.
///
/// # Errors
/// When it cannot be started or fails.
pub fn output(command: &mut Command) -> Result<String, CommandError> {
    output_of(command, "")
}

/// As [`output`], with `input` on its standard input.
///
/// # Errors
/// When it cannot be started or fails.
pub fn output_of(command: &mut Command, input: &str) -> Result<String, CommandError> {
    let line = line(command);
    let start = |source| CommandError::Start { line: line.clone(), program: command_name(&line), source };
    let stdin = if input.is_empty() { Stdio::null() } else { Stdio::piped() };
    let mut child =
        command.stdin(stdin).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().map_err(start)?;
    if let Some(mut stdin) = child.stdin.take() {
        // A program that ends before it has read all says why in its status.
        let _ = stdin.write_all(input.as_bytes());
    }
    let done = child.wait_with_output().map_err(start)?;
    if done.status.success() {
        return Ok(String::from_utf8_lossy(&done.stdout).into_owned());
    }
    let stderr = String::from_utf8_lossy(&done.stderr).trim().to_owned();
    let line = if input.is_empty() { line } else { format!("{line} <<< '{}'", input.trim()) };
    Err(CommandError::Failed { line, status: done.status, stderr })
}

/// Runs `program` with `args` and parses the JSON that it prints.
///
/// # Errors
/// When it fails or prints no JSON.
pub fn json(command: &mut Command) -> Result<serde_json::Value, CommandError> {
    let text = output(command)?;
    serde_json::from_str(&text)
        .map_err(|error| CommandError::Output { line: line(command), why: format!("JSON: {error}") })
}

/// The command line as one would type it.
pub fn line(command: &Command) -> String {
    let mut line = command.get_program().to_string_lossy().into_owned();
    for argument in command.get_args() {
        line.push(' ');
        line.push_str(&argument.to_string_lossy());
    }
    line
}

fn command_name(line: &str) -> String {
    line.split(' ').next().unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_show_command_and_stderr() {
        let error =
            output(Command::new("sh").args(["-c", "echo broken >&2; exit 3"])).unwrap_err().to_string();
        assert!(error.contains("sh -c echo broken >&2; exit 3"), "{error}");
        assert!(error.contains("exit status: 3: broken"), "{error}");
    }

    #[test]
    fn missing_programs_are_named() {
        let error = output(&mut Command::new("sumac-no-such-program")).unwrap_err().to_string();
        assert!(error.contains("is sumac-no-such-program installed"), "{error}");
    }

    #[test]
    fn input_reaches_the_program() {
        assert_eq!(output_of(&mut Command::new("cat"), "one\n").unwrap(), "one\n");
    }
}
