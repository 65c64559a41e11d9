"""What the tests of the converters share: a target, checkpoints for it, and converters that run in this process."""

import contextlib
import gzip
import io
import pathlib
import shutil
import sys
import tempfile
import unittest

import gguf

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path[:0] = [str(ROOT / "scripts"), str(ROOT / "tests/convert")]

import checkpoints  # noqa: E402
import convert_eagle  # noqa: E402
import convert_medusa  # noqa: E402
from heads import sidecar  # noqa: E402

MAINS = {"convert_medusa.py": convert_medusa.main, "convert_eagle.py": convert_eagle.main}
TYPES = sidecar.TYPES


def convert(converter, *arguments):
    """Status and stderr of a converter. What it should have refused and did not comes through as an exception."""
    said, before = io.StringIO(), sys.argv
    sys.argv = [converter, *map(str, arguments)]
    try:
        with contextlib.redirect_stderr(said):
            sidecar.run(MAINS[converter])
        return 0, said.getvalue()
    except SystemExit as end:
        return end.code, said.getvalue()
    finally:
        sys.argv = before


class Case(unittest.TestCase):
    """A folder with a target in it, and checks of conversions into it."""

    @classmethod
    def setUpClass(cls):
        cls.folder = pathlib.Path(tempfile.mkdtemp())
        cls.target = cls.folder / "target.gguf"
        cls.target.write_bytes(gzip.decompress((ROOT / "tests/fixtures/zoo/tiny-llama.Q8_0.gguf.gz").read_bytes()))

    @classmethod
    def tearDownClass(cls):
        shutil.rmtree(cls.folder)

    def facts(self, seed=1):
        return checkpoints.Facts(self.target, seed)

    def converted(self, name, *options, seed=1):
        """The sidecar of a kind, and what it must hold."""
        folder = self.folder / f"{name}-{seed}"
        held, keys = checkpoints.make(name, self.facts(seed), folder)
        _, converter, own = checkpoints.KINDS[name]
        out = self.folder / "out.gguf"
        status, said = convert(converter, folder, "--target", self.target, "-o", out, *own, *options)
        self.assertEqual(status, 0, f"{name}: {said}")
        return gguf.GGUFReader(out), held, keys, said

    def refused(self, part, converter, *arguments):
        """Checks that arguments are refused in one line with that part, and that nothing is left behind."""
        out = self.folder / "refused.gguf"
        status, said = convert(converter, *arguments, "-o", out)
        errors = [line for line in said.splitlines() if ": error: " in line]
        self.assertEqual((status, len(errors)), (1, 1), f"{part}: {said}")
        self.assertIn(part, errors[0])
        self.assertEqual(said.splitlines()[-1], errors[0])
        self.assertEqual(list(self.folder.glob("*refused*")), [], part)
        return errors[0]
