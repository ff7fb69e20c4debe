"""The product does not depend on its equipment."""

from __future__ import annotations

import unittest

import layers

# Test data of the product's tests: the conformance vectors are run on each aggregator.
TEST_DATA = {"sumac-vectors"}


class Layers(unittest.TestCase):
    def test_no_crate_of_the_product_depends_on_equipment(self) -> None:
        found = layers.workspace()
        names = {layers.manifest(folder)["package"]["name"] for folder in found["equipment"]}
        self.assertTrue({"sumac-lab", "sumac-figures", "sumac-sim", "sumac-vectors"} <= names)
        for folder in found["product"]:
            manifest = layers.manifest(folder)
            tables = [manifest.get(kind, {}) for kind in ("dependencies", "build-dependencies")]
            used = {name for table in tables for name in table}
            self.assertEqual(used & names, set(), folder)
            self.assertEqual(set(manifest.get("dev-dependencies", {})) & names - TEST_DATA, set(), folder)

    def test_lines_at_the_end_of_a_file_are_tests(self) -> None:
        counts = [layers.count(path, "wire") for path in layers.sources("wire", ["wire"])]
        self.assertTrue(sum(own for own, _ in counts) > 2000 and sum(tests for _, tests in counts) > 1000)


if __name__ == "__main__":
    unittest.main()
