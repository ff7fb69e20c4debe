//! Holds `include/sumac.h` against the sources: it is what cbindgen makes of them. `SUMAC_BLESS=1` writes it
//! anew.

use std::path::Path;

/// The lines with the version, which cbindgen does not evaluate.
fn versions() -> String {
    format!(
        "\n/// The version of this header.\n#define SUMAC_VERSION \"{}\"\n#define SUMAC_VERSION_MAJOR {}\n\
         #define SUMAC_VERSION_MINOR {}\n#define SUMAC_VERSION_PATCH {}",
        env!("CARGO_PKG_VERSION"),
        env!("CARGO_PKG_VERSION_MAJOR"),
        env!("CARGO_PKG_VERSION_MINOR"),
        env!("CARGO_PKG_VERSION_PATCH"),
    )
}

#[test]
fn the_header_is_that_of_the_sources() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut config = cbindgen::Config::from_file(folder.join("cbindgen.toml")).unwrap();
    config.after_includes = Some(versions());
    let sources =
        ["version", "status", "types", "error", "client", "job", "collective", "transfer", "request"];
    let builder = sources.iter().fold(cbindgen::Builder::new().with_config(config), |builder, name| {
        builder.with_src(folder.join(format!("src/{name}.rs")))
    });
    let mut made = Vec::new();
    builder.generate().unwrap().write(&mut made);
    let path = folder.join("include/sumac.h");
    if std::env::var_os("SUMAC_BLESS").is_some() {
        std::fs::write(&path, &made).unwrap();
    }
    let is_same = std::fs::read(&path).is_ok_and(|kept| kept == made);
    assert!(is_same, "{} is not what the sources make; SUMAC_BLESS=1 writes it anew", path.display());
}
