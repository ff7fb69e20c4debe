//! The versions that programs of a release must have in common with their peers, as `--version -v` prints
//! them.

use serde::Serialize;

/// The version of one format or protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct FormatVersion {
    pub of: &'static str,
    pub version: u32,
}

/// The versions of packets and of the control protocol, which all programs have.
pub const COMMON: [FormatVersion; 2] = [
    FormatVersion { of: "packets", version: sumac_wire::header::VERSION as u32 },
    FormatVersion { of: "control protocol", version: crate::message::PROTOCOL_VERSION },
];

/// Returns the table that a command line asks for by `--version` with `-v`, and in JSON with `--json`; `None`
/// for any other command line. `arguments` are those after the program's name.
#[must_use]
pub fn requested(
    arguments: &[String],
    program: &str,
    release: &str,
    own: &[FormatVersion],
) -> Option<String> {
    let is = |names: [&str; 2]| arguments.iter().any(|argument| names.contains(&argument.as_str()));
    let known = ["--version", "-V", "--verbose", "-v", "--json"];
    let are_known = arguments.iter().all(|argument| known.contains(&argument.as_str()));
    if !(are_known && is(["--version", "-V"]) && is(["--verbose", "-v"])) {
        return None;
    }
    let versions: Vec<FormatVersion> = COMMON.iter().chain(own).copied().collect();
    if is(["--json", "--json"]) {
        let table: serde_json::Map<_, _> =
            versions.iter().map(|each| (each.of.to_owned(), each.version.into())).collect();
        let json = serde_json::json!({ "program": program, "release": release, "versions": table });
        return Some(json.to_string());
    }
    let rows: Vec<String> =
        versions.iter().map(|each| format!("  {:32} {}", each.of, each.version)).collect();
    Some(format!("{program} {release}\n{}", rows.join("\n")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_printed_for_both_words_in_any_order() {
        let own = [FormatVersion { of: "local API", version: 4 }];
        let asked = |arguments: &[&str]| {
            let arguments: Vec<String> = arguments.iter().map(|&argument| argument.into()).collect();
            requested(&arguments, "sumac", "0.1.0", &own)
        };
        for other in [&["--version"][..], &["-v"], &["stats", "-v", "--version"], &[]] {
            assert_eq!(asked(other), None, "{other:?}");
        }
        let table = asked(&["-v", "--version"]).unwrap();
        assert_eq!(asked(&["--version", "-v"]), Some(table.clone()));
        assert!(table.starts_with("sumac 0.1.0\n") && table.contains("local API"), "{table}");
        let json: serde_json::Value = serde_json::from_str(&asked(&["-V", "-v", "--json"]).unwrap()).unwrap();
        assert_eq!((&json["versions"]["local API"], &json["release"]), (&4.into(), &"0.1.0".into()));
    }
}
