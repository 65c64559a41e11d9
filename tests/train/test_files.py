"""What the trainer refuses to read, and how it cuts texts."""

import json
import pathlib
import sys
import tempfile
import types
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "scripts"))

from heads.features import Features, windows
from heads.tensor import Refused

import numpy as np

META = {"format": "foretoken-features-1", "taps": "0,1,2", "hidden_size": "4", "vocab_hash": "abc", "input": "x"}
TARGET = types.SimpleNamespace(path="m.gguf", hidden=4, vocab=50, vocab_hash="abc")
KINDS = {"i4": "I32", "i8": "I64", "u1": "U8", "f2": "F16"}


def arrays(first=0):
    return {
        "tokens": np.arange(7, dtype="<i4") + first,
        "starts": np.array([0, 3, 7], dtype="<i8"),
        "weights": np.ones(7, dtype="u1"),
        "hidden": np.arange(28, dtype="<f2").reshape(7, 4) + first,
        "taps": np.arange(84, dtype="<f2").reshape(7, 3, 4),
    }


def shard(values, meta=META, cut=0):
    header, body = {"__metadata__": meta}, b""
    for name, array in values.items():
        at = [len(body), len(body) + array.nbytes]
        header[name] = {"dtype": KINDS[array.dtype.str[1:]], "shape": list(array.shape), "data_offsets": at}
        body += array.tobytes()
    header = json.dumps(header).encode()
    whole = len(header).to_bytes(8, "little") + header + body
    return whole[: len(whole) - cut]


class Shards(unittest.TestCase):
    def read(self, *files, kind="eagle3"):
        with tempfile.TemporaryDirectory() as folder:
            for number, data in enumerate(files):
                (pathlib.Path(folder) / f"features-{number:05}.safetensors").write_bytes(data)
            return Features(folder, TARGET, kind)

    def test_rows_of_all_shards(self):
        data = self.read(shard(arrays()), shard(arrays(10)))
        self.assertEqual((data.texts, data.taps), (4, [0, 1, 2]))
        self.assertEqual(data.tokens.tolist(), [*range(7), *range(10, 17)])
        self.assertEqual(data.text.tolist(), [0] * 3 + [1] * 4 + [2] * 3 + [3] * 4)
        rows = data.rows("hidden", np.array([[8, -1], [0, 13]]))
        self.assertEqual(rows[:, :, 0].tolist(), [[14, 0], [0, 34]])
        batch = data.batch(np.array([[6, 7, 8, -1]]), 2, True)
        self.assertEqual(batch["text"].tolist(), [[1, 2, 2, -1]])
        self.assertEqual(batch["taps"].shape, (1, 2, 12))

    def test_windows_cover_a_stream_once(self):
        stream = np.array([3, 4, 5, 9, 10, 11, 12])
        for offset in range(4):
            cut = windows(stream, 4, 2, offset)
            self.assertEqual(sorted(cut[:, :4][cut[:, :4] >= 0].tolist()), stream.tolist(), offset)
            for row in cut:
                there = row[row >= 0]
                at = stream.tolist().index(there[0])
                self.assertEqual(there.tolist(), stream[at : at + len(there)].tolist())

    def test_refusals(self):
        values = arrays()
        other = lambda **changed: shard({**values, **changed})
        said = lambda **changed: shard(values, {**META, **changed})
        for wrong, part in (
            ([], "holds no features"),
            ([b""], "no whole shard"),
            ([b"\xff" * 100], "no whole shard"),
            ([(2).to_bytes(8, "little") + b"[]"], "no whole shard"),
            ([shard(values, cut=1)], "no whole shard"),
            ([shard({"tokens": values["tokens"]})], "starts"),
            ([other(hidden=values["hidden"][:5])], "tensor hidden has shape [5, 4]"),
            ([other(starts=np.array([0, 5, 3, 7]))], "starts"),
            ([other(starts=np.array([0, 6]))], "starts"),
            ([other(tokens=values["tokens"] + 44)], "beyond the target's 50"),
            ([said(format="2")], "key format is 2"),
            ([said(vocab_hash="b")], "key vocab_hash is b, must be abc, as m.gguf has it"),
            ([shard(values), shard({k: v[:, :2] if k == "taps" else v for k, v in values.items()}, {**META, "taps": "0,1"})], "key taps"),
            ([shard({k: v for k, v in values.items() if k != "taps"}, {**META, "taps": ""})], "eagle3 reads three"),
        ):
            with self.assertRaises(Refused) as raised:
                self.read(*wrong)
            self.assertIn(part, str(raised.exception))


if __name__ == "__main__":
    unittest.main()
