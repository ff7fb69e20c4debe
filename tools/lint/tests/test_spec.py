"""Each mechanism of the papers is cited in the code and in a test."""

from __future__ import annotations

import unittest

import spec


class Citations(unittest.TestCase):
    def test_each_mechanism_has_its_citations(self) -> None:
        found, unknown = spec.collect()
        self.assertEqual(unknown, [])
        self.assertGreaterEqual(len(found), 15)
        for name, places in found.items():
            for kind in ("code", "test"):
                with self.subTest(name, kind=kind):
                    self.assertTrue(places[kind], f"add `//= {name}`")

    def test_each_section_has_a_mechanism(self) -> None:
        self.assertEqual(spec.uncovered(), [])


if __name__ == "__main__":
    unittest.main()
