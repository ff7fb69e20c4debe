"""The product does not depend on its equipment."""

from __future__ import annotations

import pathlib
import tempfile
import tomllib
import unittest

import layers

# Equipment of the product's tests: the conformance vectors, and a switch without a chip.
FOR_TESTS = {"sumac-vectors", "sumac-played-switch"}


class Layers(unittest.TestCase):
    def test_no_crate_of_the_product_depends_on_equipment(self) -> None:
        found = layers.workspace()
        names = {layers.manifest(folder)["package"]["name"] for folder in found["equipment"]}
        self.assertTrue({"sumac-lab", "sumac-figures", "sumac-sim", "sumac-vectors"} <= names)
        shared = layers.manifest(".")["workspace"]["dependencies"]
        for folder in found["product"]:
            used = layers.dependencies(layers.manifest(folder), shared)
            self.assertEqual((used["dependencies"] | used["build-dependencies"]) & names, set(), folder)
            self.assertEqual(used["dev-dependencies"] & names - FOR_TESTS, set(), folder)

    def test_a_dependency_is_found_under_another_name_and_on_another_target(self) -> None:
        shared = {"anyhow": "1", "network": {"path": "tools/lab", "package": "sumac-lab"}}
        for text, kind in (
            ('[dependencies]\nsumac-lab = "0.1"', "dependencies"),
            ('[dependencies]\nnetwork = { path = "tools/lab", package = "sumac-lab" }', "dependencies"),
            ("[dependencies]\nnetwork.workspace = true", "dependencies"),
            ("[build-dependencies]\nnetwork = { workspace = true, features = ['a'] }", "build-dependencies"),
            ("[target.'cfg(unix)'.dependencies]\nsumac-lab = '0.1'", "dependencies"),
            ("[target.'cfg(unix)'.dev-dependencies]\nnetwork.workspace = true", "dev-dependencies"),
            # A workspace of its own.
            (
                "[workspace.dependencies]\nnet = { version = '1', package = 'sumac-lab' }\n"
                "[dependencies]\nnet.workspace = true",
                "dependencies",
            ),
        ):
            with self.subTest(text):
                expected = {other: {"sumac-lab"} if other == kind else set() for other in layers.KINDS}
                self.assertEqual(layers.dependencies(tomllib.loads(text), shared), expected)
        other = tomllib.loads("[dependencies]\nanyhow.workspace = true\nlibc = '0.2'")
        used = layers.dependencies(other, shared)
        self.assertEqual(used["dependencies"], {"anyhow", "libc"})

    def test_lines_at_the_end_of_a_file_are_tests(self) -> None:
        divided = [layers.divide(path) for path in layers.sources("wire", ["wire"])]
        own, tests = (sum(len(lines) for lines in part) for part in zip(*divided))
        self.assertTrue(own > 2000 and tests > 1000, (own, tests))

    def test_modules_of_tests_at_the_end_are_no_product(self) -> None:
        for module in ("mod tests {", "pub mod tests {", "pub(crate) mod tests {"):
            with tempfile.TemporaryDirectory() as folder:
                path = pathlib.Path(folder, "lib.rs")
                path.write_text(f"//! Some.\n\nfn own() {{}}\n#[cfg(test)]\n{module}\n    fn test() {{}}\n}}\n")
                own, tests = layers.divide(path, pathlib.Path(folder))
            self.assertEqual((len(own), layers.code(own), len(tests)), (3, 1, 4), module)


if __name__ == "__main__":
    unittest.main()
