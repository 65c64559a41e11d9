"""What each published spelling becomes, value by value."""

import hashlib
import struct
import unittest

import gguf
import numpy as np

from case import TYPES, Case, checkpoints, convert, convert_medusa
from writing import write_config, write_safetensors


class Spellings(Case):
    def test_every_kind_becomes_its_sidecar(self):
        for name in checkpoints.KINDS:
            for seed in (1, 2):
                reader, held, keys, _ = self.converted(name, "--type", "f32", seed=seed)
                found = {t.name: t for t in reader.tensors}
                self.assertEqual(sorted(found), sorted(held), name)
                for tensor, values in held.items():
                    shape = [int(n) for n in reversed(found[tensor].shape)]
                    self.assertEqual(shape, list(values.shape), f"{name}: {tensor}")
                    self.assertTrue((found[tensor].data == values).all(), f"{name}: {tensor}")
                    want = gguf.GGMLQuantizationType.I32 if tensor == "d2t" else gguf.GGMLQuantizationType.F32
                    self.assertEqual(found[tensor].tensor_type, want, f"{name}: {tensor}")
                for key, value in keys.items():
                    self.assertIn(key, reader.fields, name)
                    self.assertEqual(reader.fields[key].contents(), value, f"{name}: {key}")
                if "spec.draft_vocab_size" not in keys:
                    self.assertNotIn("spec.draft_vocab_size", reader.fields, name)

    def test_the_target_is_fingerprinted(self):
        digest = hashlib.sha256()
        for token in gguf.GGUFReader(self.target).fields["tokenizer.ggml.tokens"].contents():
            digest.update(struct.pack("<I", len(token.encode())) + token.encode())
        expected = {
            "architecture": "llama",
            "hidden_size": 256,
            "vocab_size": 320,
            "tokenizer": "gpt2",
            "vocab_hash": digest.hexdigest(),
        }
        for name, feature in (("medusa-pt", "post_norm"), ("eagle-bin", "post_norm"), ("eagle3-midlayer", "residual_in")):
            fields = self.converted(name)[0].fields
            for key, value in expected.items():
                if key == "tokenizer":
                    value = gguf.GGUFReader(self.target).fields["tokenizer.ggml.model"].contents()
                self.assertEqual(fields[f"spec.target.{key}"].contents(), value)
            self.assertEqual(fields["spec.feature"].contents(), feature)
            self.assertEqual(fields["general.architecture"].contents(), name.split("-")[0])

    def test_types_are_those_of_gguf(self):
        for type_name, kind in TYPES.items():
            for name in ("medusa-vllm-reduced", "eagle3-midlayer"):
                reader, held, _, _ = self.converted(name, "--type", type_name)
                for tensor in reader.tensors:
                    values = held[tensor.name]
                    if values.ndim == 1:
                        continue
                    self.assertEqual(tensor.tensor_type, kind, tensor.name)
                    self.assertTrue((tensor.data == gguf.quants.quantize(values, kind)).all(), f"{type_name}: {tensor.name}")

    def test_rows_of_no_whole_blocks_stay_in_16_bits(self):
        facts, folder = self.facts(), self.folder / "odd"
        named, others, held = checkpoints.eagle(facts)
        cut = {
            "mlp.gate_proj.weight": (slice(80),),
            "mlp.up_proj.weight": (slice(80),),
            "mlp.down_proj.weight": (slice(None), slice(80)),
        }
        named = {name: values[cut.get(name, ())] for name, values in named.items()}
        folder.mkdir()
        write_safetensors(folder / "model.safetensors", {**others, **checkpoints.prefixed("layers.0.", named)})
        write_config(folder, **{**checkpoints.layer_config(256), "intermediate_size": 80})
        status, said = convert(
            "convert_eagle.py", folder, "--target", self.target, "-o", self.folder / "odd.gguf", "--type", "q4_0"
        )
        self.assertEqual((status, said.count("rows of 80")), (0, 1), said)
        types = {t.name: t.tensor_type.name for t in gguf.GGUFReader(self.folder / "odd.gguf").tensors}
        self.assertEqual((types["blk.0.ffn_down.weight"], types["blk.0.ffn_up.weight"]), ("F16", "Q4_0"))

    def test_notes_say_what_was_decided(self):
        notes = {
            "medusa-pt": "says 2 heads (medusa_num_heads), the tensors are of 3",
            "medusa-padded": "16 rows of padding",
            "medusa-short": "the last 8 tokens",
            "medusa-vllm-target": "is the target's own output matrix",
            "medusa-blocks-are-there-once": "its one block stands for 2",
            "eagle-bin": "is the target's own table",
            "eagle3-ids": "d2t holds ids",
            "eagle3-rows-of-all-tokens": "of 320 rows the 96",
            "eagle3-padded-head": "16 rows of padding",
        }
        for name, part in notes.items():
            self.assertIn(part, self.converted(name)[3], name)

    def test_trees(self):
        def tree(reader):
            return reader.fields["medusa.tree"].contents()

        numbers = tree(self.converted("medusa-pt")[0])
        paths = " ".join(map(str, numbers)).split("-1")[:-1]
        self.assertEqual((len(paths), numbers.count(-1), numbers[:7]), (61, 61, [0, -1, 0, 0, -1, 1, -1]))
        self.assertEqual(max(len(path.split()) for path in paths), 3, "two paths need a fourth head")
        choices = self.folder / "choices.json"
        choices.write_text("[[1], [0], [0, 2]]")
        self.assertEqual(tree(self.converted("medusa-legacy", "--tree", choices)[0]), [1, -1, 0, -1, 0, 2, -1])
        self.assertEqual(len(convert_medusa.TREES["mc_sim_7b_63"].split()), 63)
        self.assertNotIn("medusa.tree", self.converted("medusa-legacy")[0].fields)

    def test_d2t_that_could_be_both(self):
        # Ids that lie far apart are offsets as well.
        for option, marks, expected in (
            ("auto", None, "ids"),
            ("auto", "ids", "ids"),
            ("auto", "offsets", "offsets"),
            ("offsets", None, "offsets"),
        ):
            facts, folder = self.facts(), self.folder / f"both-{option}-{marks}"
            named, others, _ = checkpoints.eagle3(facts)
            ids = {"ids": np.arange(8) * 3, "offsets": np.arange(8) * 4}
            head = {"lm_head.weight": facts.matrix(8, 256), "d2t": ids["ids"]}
            if marks:
                head["t2d"] = np.isin(np.arange(320), ids[marks])
            folder.mkdir()
            write_safetensors(folder / "model.safetensors", {**others, **checkpoints.prefixed("midlayer.", named), **head})
            write_config(folder, **checkpoints.eagle3_config(facts))
            out = self.folder / "both.gguf"
            status, said = convert("convert_eagle.py", folder, "--target", self.target, "-o", out, "--d2t", option)
            self.assertEqual(status, 0, said)
            found = next(t.data for t in gguf.GGUFReader(out).tensors if t.name == "d2t")
            self.assertEqual(list(found), list(ids[expected]), (option, marks))


if __name__ == "__main__":
    unittest.main()
