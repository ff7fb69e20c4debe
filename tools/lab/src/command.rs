//! Other programs, run to their end, with errors that show what was run and what it said.

use std::io::Write;
use std::process::{Command, Stdio};

use anyhow::{Result, anyhow, bail};

/// Runs a command to its end and returns what it printed.
pub fn output(command: &mut Command) -> Result<String> {
    output_of(command, "")
}

/// As [`output`], with `input` on its standard input.
pub fn output_of(command: &mut Command, input: &str) -> Result<String> {
    let (line, program) = (line(command), command.get_program().to_string_lossy().into_owned());
    let start = |source| {
        anyhow!(
            "running `{line}`: {source}; is {program} installed (tools/setup.sh installs what the lab needs)?"
        )
    };
    let stdin = if input.is_empty() { Stdio::null() } else { Stdio::piped() };
    let mut child =
        command.stdin(stdin).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().map_err(start)?;
    if let Some(mut stdin) = child.stdin.take() {
        // A program that ends before it has read all states why in its status.
        let _ = stdin.write_all(input.as_bytes());
    }
    let done = child.wait_with_output().map_err(start)?;
    if done.status.success() {
        return Ok(String::from_utf8_lossy(&done.stdout).into_owned());
    }
    let stderr = String::from_utf8_lossy(&done.stderr);
    let input = if input.is_empty() { String::new() } else { format!(" <<< '{}'", input.trim()) };
    bail!("`{line}{input}` ended with {}: {}", done.status, stderr.trim())
}

/// Runs a command and parses the JSON that it prints.
pub fn json(command: &mut Command) -> Result<serde_json::Value> {
    let text = output(command)?;
    serde_json::from_str(&text).map_err(|error| not_understood(command, &format!("JSON: {error}")))
}

/// The error of a command whose output is not what it should be.
pub fn not_understood(command: &Command, why: &str) -> anyhow::Error {
    anyhow!("`{}` printed something that is not understood: {why}", line(command))
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
