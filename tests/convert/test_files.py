"""Files and folders that are damaged or hostile: each is refused in one line, and nothing in it is run."""

import json
import os
import pickle
import struct
import subprocess
import sys
import unittest
import zipfile

import gguf
import numpy as np

from case import MAINS, ROOT, Case, checkpoints, convert
from writing import write_archive, write_config, write_torch


class Files(Case):
    def test_torch_files_of_every_protocol(self):
        facts = self.facts()
        held = checkpoints.medusa(facts, heads=2)
        held["medusa.1.res.0.weight"] = np.asfortranarray(held["medusa.1.res.0.weight"])
        for protocol in (2, 3, 4, 5):
            for form in ("F64", "F32", "F16", "BF16"):
                for wrap, parameters in ((None, False), ("state_dict", True), ("model", False)):
                    path = self.folder / "heads.pt"
                    write_torch(path, checkpoints.medusa_names(held, 1), form, protocol, wrap, parameters)
                    out = self.folder / "protocol.gguf"
                    status, said = convert("convert_medusa.py", path, "--target", self.target, "-o", out, "--type", "f32")
                    self.assertEqual(status, 0, f"{protocol} {form} {wrap}: {said}")
                    for tensor in gguf.GGUFReader(out).tensors:
                        self.assertTrue((tensor.data == held[tensor.name]).all(), f"{protocol} {form} {tensor.name}")

    def test_hostile_pickles_are_refused_and_not_run(self):
        ran = self.folder / "ran"

        class Run:
            def __reduce__(self):
                return os.system, (f"touch {ran}",)

        def op(text):
            return b"\x80\x02" + text

        tensor = b"ctorch._utils\n_rebuild_tensor_v2\n((X\x07\0\0\0storagectorch\nFloatStorage\nX\x01\0\0\0%cX\x03\0\0\0cpuJ%stQK\0%s%s\x89}tR"

        def one(key=b"0", count=4, shape=b"K\x04\x85", strides=b"K\x01\x85"):
            return op(b"}X\x01\0\0\0a" + tensor % (key, struct.pack("<i", count), shape, strides) + b"s.")

        names = f"names '{os.system.__module__}.system', which is refused"
        pickles = [
            *((pickle.dumps({"0.0.linear.weight": Run()}, protocol), names) for protocol in range(1, 6)),
            (pickle.dumps({"0.0.linear.weight": Run()}, 0), "uses DICT at byte 1"),
            (op(b"cbuiltins\neval\n(X\x05\0\0\0print\x85R."), "names 'builtins.eval'"),
            (op(b"(X\x08\0\0\0builtinsX\x04\0\0\0exec\x93."), "names 'builtins.exec'"),
            (op(b"ctorch.storage\n_load_from_bytes\n."), "names 'torch.storage._load_from_bytes'"),
            (op(b"ctorch\nload\n."), "names 'torch.load'"),
            (op(b"(iposix\nsystem\n."), "uses INST at byte 3"),
            (op(b"}}\x81."), "uses NEWOBJ"),
            (op(b"(}o."), "uses OBJ"),
            (op(b"\x82\x01."), "uses EXT1"),
            (op(b"Pkey\n."), "uses PERSID"),
            (op(b"}2."), "uses DUP"),
            (op(b"ctorch\nFloatStorage\n)R."), "the pickle is damaged"),
            (op(b"ccollections\nOrderedDict\n](K\x01K\x02\x86\x85e\x85R."), "the pickle is damaged"),
            (op(b"K\x01Q."), "the pickle is damaged"),
            (op(b"]}b."), "the pickle is damaged"),
            (op(b"(K\x01."), "must hold a dict of tensors"),
            (op(b"]]s."), "the pickle is damaged"),
            (op(b"}]K\x01s."), "the pickle is damaged"),
            (op(b"."), "the pickle is damaged"),
            (b"", "the pickle is damaged"),
            (op(b"h\x05."), "the pickle is damaged"),
            (op(b"u."), "the pickle is damaged"),
            (op(b"\xff."), "the pickle is damaged"),
            (op(b"X\xff\xff\xff\x7fa."), "the pickle is damaged"),
            (op(b"}"), "the pickle is damaged"),
            (op(b"}K\x01" + one()[3 + 6 :]), "named by a number"),
            (op(b"}."), "holds no tensors"),
            (op(b"K\x01."), "holds a int"),
            (one(), "tensor a is not understood"),
            (one(b"7"), "entry archive/data/7 is missing"),
            (one(count=5), "entry archive/data/0 has 16 bytes"),
            (one(shape=b"K\x05\x85"), "tensor a with shape [5] exceeds its storage of 4"),
            (one(strides=b"K\x02\x85"), "exceeds its storage"),
            (one(strides=b"J\xff\xff\xff\xff\x85"), "the pickle is damaged"),
            (one(shape=b"\x8a\x05\0\0\0\0\x01\x85", strides=b"K\0\x85"), "exceeds its storage"),
            (one(shape=b"\x8a\x09\0\0\0\0\0\0\0\0\x01\x85", strides=b"K\0\x85"), "the pickle is damaged"),
            (one(shape=b"K\x02K\x02\x86"), "the pickle is damaged"),
            (one(count=-1), "the pickle is damaged"),
        ]
        for data, part in pickles:
            path = self.folder / "hostile.pt"
            write_archive(path, data, [bytes(16)])
            for converter in MAINS:
                if converter == "convert_eagle.py" and part.endswith("not understood"):
                    continue
                if converter == "convert_eagle.py":
                    write_config(self.folder, num_attention_heads=4)
                self.refused(part, converter, path, "--target", self.target)
                (self.folder / "config.json").unlink(missing_ok=True)
        self.assertFalse(ran.exists())

    def test_damaged_archives(self):
        plain = pickle.dumps({}, 2)

        def archive(*arguments, **keywords):
            return lambda path: write_archive(path, *arguments, **keywords)

        def twice(path):
            with zipfile.ZipFile(path, "w") as file:
                file.writestr("a/data.pkl", plain)
                file.writestr("b/data.pkl", plain)

        def compressed_storage(path):
            facts = self.facts()
            write_torch(path, checkpoints.medusa_names(checkpoints.medusa(facts, heads=1), 1))
            with zipfile.ZipFile(path) as file:
                entries = {name: file.read(name) for name in file.namelist()}
            with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
                for name, data in entries.items():
                    file.writestr(name, data, zipfile.ZIP_DEFLATED if "/data/" in name else zipfile.ZIP_STORED)

        def text(data):
            return lambda path: path.write_bytes(data)

        cases = [
            (archive(plain, [], compression=zipfile.ZIP_DEFLATED), "is compressed, must be stored"),
            (archive(plain, [], order=b"big"), "byteorder is b'big', must be little"),
            (twice, "holds 2 entries data.pkl"),
            (archive(b"\x80\x02" + b"N" * (1 << 24) + b".", []), "at most 16777216 are read"),
            (compressed_storage, "is compressed, must be stored"),
            (text(b"PK\x03\x04" + bytes(100)), "damaged zip file"),
            (text(b""), "is neither"),
            (text(b"\x80\x02\x8a\x0a"), "older than 1.6"),
            (text(b"version https://git-lfs.github.com/spec/v1\noid"), "is a Git LFS pointer"),
            (text(b"GGUF\x03\0\0\0"), "is a GGUF file already"),
            (text(struct.pack("<Q", 1 << 40) + b"{}"), "is neither"),
            (text(struct.pack("<Q", 3) + b"{ab"), "the header is not JSON"),
            (text(struct.pack("<Q", 90001) + b'{"a":' + b"[" * 89996), "the header is not JSON"),
        ]
        for make, part in cases:
            path = self.folder / "damaged.bin"
            make(path)
            self.refused(part, "convert_medusa.py", path, "--target", self.target)

    def test_damaged_safetensors(self):
        good = {"dtype": "F32", "shape": [2, 2], "data_offsets": [0, 16]}
        cases = [
            ({"a": 5}, "tensor a: dtype, shape and data_offsets are missing"),
            ({"a": {}}, "tensor a: dtype"),
            ({"a": {**good, "shape": [2, -2]}}, "tensor a: dtype"),
            ({"a": {**good, "shape": [1 << 60]}}, "tensor a: dtype"),
            ({"a": {**good, "shape": [True]}}, "tensor a: dtype"),
            ({"a": {**good, "data_offsets": [0, 8, 16]}}, "tensor a: dtype"),
            ({"a": {**good, "dtype": "F8_E4M3"}}, "tensor a has type F8_E4M3; supported are"),
            ({"a": {**good, "dtype": [1]}}, "has type [1]"),
            ({"a": {**good, "data_offsets": [0, 32]}}, "has bytes 0 to 32 of 16"),
            ({"a": {**good, "data_offsets": [4, 20]}}, "has bytes 4 to 20"),
            ({"a": {**good, "data_offsets": [16, 0]}}, "has bytes 16 to 0"),
            ({"a": {**good, "shape": [4, 2]}}, "with shape [4, 2]"),
            ({"a\nerror: b": good}, "tensor a error: b is not understood"),
            ({}, "holds no tensors"),
            ({"__metadata__": {}}, "holds no tensors"),
        ]
        for header, part in cases:
            path, head = self.folder / "damaged.safetensors", json.dumps(header).encode()
            path.write_bytes(struct.pack("<Q", len(head)) + head + bytes(16))
            self.refused(part, "convert_medusa.py", path, "--target", self.target)

    def test_damaged_targets_and_places(self):
        folder = self.folder / "good"
        checkpoints.make("medusa-legacy", self.facts(), folder)
        data = self.target.read_bytes()
        sidecar_file = self.folder / "sidecar.gguf"
        convert("convert_medusa.py", folder, "--target", self.target, "-o", sidecar_file)
        hidden = data.index(b"llama.embedding_length")
        targets = [
            (b"", "is not a GGUF file"),
            (b"PK\x03\x04", "is not a GGUF file"),
            (data[:5000], "damaged GGUF file"),
            (data[:20], "damaged GGUF file"),
            (data.replace(b"general.architecture", b"general.architectura", 1), "key general.architecture is missing"),
            (data[: hidden + 6] + b"E" + data[hidden + 7 :], "key llama.embedding_length is missing"),
            (data.replace(b"tokenizer.ggml.tokens", b"tokenizer.ggml.tokenz", 1), "key tokenizer.ggml.tokens is missing"),
            (data.replace(b"tokenizer.ggml.model", b"tokenizer.ggml.modal", 1), "key tokenizer.ggml.model is missing"),
            (sidecar_file.read_bytes(), "key general.architecture is medusa, must be that of a target"),
        ]
        for content, part in targets:
            path = self.folder / "damaged.gguf"
            path.write_bytes(content)
            self.refused(part, "convert_medusa.py", folder, "--target", path)
        self.refused("absent.gguf: No such file", "convert_medusa.py", folder, "--target", self.folder / "absent.gguf")
        self.refused("absent: no such file or folder", "convert_medusa.py", self.folder / "absent", "--target", self.target)
        for out, part in (
            (self.target, "is the target, must be another file"),
            (self.folder / "absent/out.gguf", "No such file"),
        ):
            status, said = convert("convert_medusa.py", folder, "--target", self.target, "-o", out)
            self.assertEqual((status, part in said), (1, True), said)
        self.assertEqual(self.target.read_bytes(), data)

    def test_folders(self):
        def write(folder, **files):
            folder = self.folder / folder
            folder.mkdir()
            for name, content in files.items():
                (folder / name.replace("__", ".")).write_text(content)
            return folder

        index = '{"weight_map": {"a": "%s"}}'
        cases = [
            (write("empty"), "found none"),
            (write("two", a__pt="", b__pt=""), "found a.pt, b.pt"),
            (write("config", config__json="{"), "config.json: not JSON"),
            (write("list", config__json="[]"), "config.json: must be an object"),
            (write("deep", config__json="[" * 100000), "config.json: not JSON"),
            (write("long", config__json=" " * (1 << 20) + "{}"), "has more than"),
            (write("index", model__safetensors__index__json="{}"), "key weight_map must map"),
            (write("escape", model__safetensors__index__json=index % "../two/a.pt"), "names '../two/a.pt', must name files"),
            (write("shard", model__safetensors__index__json=index % "b.safetensors"), "b.safetensors: No such file"),
        ]
        for folder, part in cases:
            self.refused(part, "convert_medusa.py", folder, "--target", self.target)

    def test_mutations_end_in_one_line_or_a_sidecar(self):
        random, converted = np.random.default_rng(7), 0
        for name in ("medusa-pt", "eagle-bin", "eagle3-speculators", "medusa-vllm-reduced"):
            folder = self.folder / f"mutated-{name}"
            checkpoints.make(name, self.facts(), folder)
            (path,) = (f for f in folder.iterdir() if f.name != "config.json")
            data = path.read_bytes()
            # Headers and pickles, and the directory at the end of an archive.
            places = np.concatenate([np.arange(min(6000, len(data))), np.arange(max(0, len(data) - 2000), len(data))])
            for _ in range(120):
                changed = bytearray(data)
                for at in random.choice(places, random.integers(1, 4)):
                    changed[at] = random.integers(256)
                if random.integers(8) == 0:
                    changed = changed[: random.integers(len(changed))]
                path.write_bytes(changed)
                out = self.folder / "mutated.gguf"
                status, said = convert(checkpoints.KINDS[name][1], folder, "--target", self.target, "-o", out, "--type", "f16")
                self.assertIn(status, (0, 1))
                self.assertEqual(said.count(": error: "), status, said)
                converted += status == 0
        self.assertGreater(converted, 0)

    def test_the_programs_themselves(self):
        folder = self.folder / "program"
        checkpoints.make("medusa-pt", self.facts(), folder)
        command = [
            sys.executable,
            ROOT / "scripts/convert_medusa.py",
            folder,
            "--target",
            self.target,
            "-o",
            self.folder / "program.gguf",
        ]
        done = subprocess.run(command, capture_output=True, text=True)
        self.assertEqual((done.returncode, done.stdout), (0, ""), done.stderr)
        self.assertTrue(all(line.startswith("convert_medusa: note: ") for line in done.stderr.splitlines()), done.stderr)
        command[1] = ROOT / "scripts/convert_eagle.py"
        done = subprocess.run(command, capture_output=True, text=True)
        self.assertEqual((done.returncode, done.stderr.count("\n")), (1, 1), done.stderr)
        self.assertIn("convert_eagle: error: ", done.stderr)
        without = subprocess.run(
            [sys.executable, "-S", *command[1:]], capture_output=True, text=True, env={**os.environ, "PYTHONPATH": ""}
        )
        self.assertEqual((without.returncode, without.stderr.count("\n")), (1, 1), without.stderr)
        self.assertIn("pip install gguf numpy", without.stderr)


if __name__ == "__main__":
    unittest.main()
