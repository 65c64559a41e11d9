"""Checkpoints that can be read and do not fit: the table of error lines."""

import json
import os
import shutil
import unittest

import numpy as np

from case import Case, checkpoints, convert, convert_eagle
from writing import write_safetensors


class Heads(Case):
    """Checkpoints that are read and do not fit."""

    def heads(self, name, change=lambda tensors: None, options=(), **config):
        """Arguments for a checkpoint of a kind with other tensors, or other keys in its configuration."""
        folder = self.folder / "changed"
        shutil.rmtree(folder, ignore_errors=True)
        written = {}
        saved = checkpoints.write_safetensors, checkpoints.write_torch
        checkpoints.write_safetensors = checkpoints.write_torch = lambda path, tensors, *_, **__: written.update(tensors)
        try:
            checkpoints.make(name, self.facts(), folder)
        finally:
            checkpoints.write_safetensors, checkpoints.write_torch = saved
        change(written)
        write_safetensors(folder / "model.safetensors", written, "F32")
        path = folder / "config.json"
        keys = {**(json.loads(path.read_text()) if path.exists() else {}), **config}
        path.write_text(json.dumps({k: v for k, v in keys.items() if v != "absent"}))
        return checkpoints.KINDS[name][1], folder, "--target", self.target, *options

    def test_changes(self):
        def drop(name):
            return lambda tensors: tensors.pop(name)

        def put(name, values):
            return lambda tensors: tensors.update({name: values})

        def cut(name, *slices):
            return lambda tensors: tensors.update({name: tensors[name][slices]})

        def shift(name, by):
            return lambda tensors: tensors.update({name: tensors[name] + by})

        def spoil(name, value):
            def change(tensors):
                tensors[name] = tensors[name].copy()
                tensors[name].flat[-1] = value

            return change

        zeros = np.zeros((4, 4), np.float32)
        layer, mid, legacy, vllm = "layers.0.", "midlayer.", "medusa-legacy", "medusa-vllm-reduced"
        cases = [
            ("medusa-pt", put("3.1.weight", zeros), {}, "head 3 has no blocks, but there are 4 heads"),
            ("medusa-pt", put("63.1.weight", zeros), {}, "there are 64 heads, at most 63 are supported"),
            ("medusa-pt", lambda t: t.update({"0.17.weight": t.pop("0.1.weight")}), {}, "head 0 has 17 blocks, at most 16"),
            ("medusa-pt", drop("1.1.weight"), {}, "the output matrix of head 1 is missing, but 0 has one"),
            ("medusa-pt", drop("1.0.linear.weight"), {}, "the weight of block 0 of head 1 is missing"),
            ("medusa-pt", put("1.3.linear.weight", zeros), {}, "tensor 1.1.weight comes before block 3"),
            ("medusa-pt", put("1.2.weight", zeros), {}, "head 1 has 1.1.weight too"),
            ("medusa-pt", put("1.norm.weight", zeros), {}, "tensor 1.norm.weight is not understood"),
            (
                "medusa-pt",
                cut("1.0.linear.weight", slice(128)),
                {},
                "1.0.linear.weight has shape [128, 256], must have [256, 256]",
            ),
            ("medusa-pt", cut("1.0.linear.bias", slice(128)), {}, "1.0.linear.bias has shape [128], must have [256]"),
            (
                "medusa-pt",
                cut("1.1.weight", slice(None), slice(128)),
                {},
                "1.1.weight has shape [320, 128], must have [any, 256]",
            ),
            ("medusa-pt", cut("1.1.weight", slice(200)), {}, "has 320 tokens: made for another vocabulary"),
            ("medusa-pt", cut("1.1.weight", slice(310)), {}, "1.1.weight has 310 rows, 0.1.weight has 320"),
            ("medusa-pt", cut("1.1.weight", slice(0)), {}, "1.1.weight has shape [0, 256]"),
            ("medusa-pt", spoil("1.1.weight", np.nan), {}, "1.1.weight holds a NaN or an infinity"),
            ("medusa-pt", spoil("1.1.weight", 1e6), {}, "beyond F16's range; use --type f32"),
            ("medusa-pt", put("1.0.linear.bias", np.arange(256)), {}, "1.0.linear.bias holds <i8 values, must hold floats"),
            ("medusa-pt", None, {"medusa_num_heads": "three"}, 'key medusa_num_heads is "three", must be a whole number'),
            (
                "medusa-pt",
                None,
                {"medusa_num_layers": 1000},
                "key medusa_num_layers is 1000, must be a whole number in 1 to 16",
            ),
            (legacy, lambda tensors: tensors.clear() or tensors.update(x=zeros), {}, "tensor x is not understood"),
            (
                legacy,
                lambda tensors: tensors.clear() or tensors.update({"lm_head.weight": zeros}),
                {},
                "holds no blocks of heads",
            ),
            (legacy, put("0.2.linear.weight", zeros), {}, "the weight of block 1 of head 0 is missing"),
            (legacy, put("0.1.linear.weight", zeros), {}, "heads have [2, 1, 1, 1] blocks, must have equally many"),
            (legacy, put("token_map", np.arange(4)), {}, "token_map is there without the output matrix"),
            (vllm, None, {"logit_scale": 0.5}, "key logit_scale is 0.5, must be 1"),
            (vllm, None, {"original_lm_head": 1}, "key original_lm_head is 1, must be true or false"),
            (vllm, None, {"truncated_vocab_size": 80}, "token_map has shape [96], must have [80]"),
            (vllm, shift("token_map", 300), {}, "must lie in 0..320"),
            (vllm, shift("token_map", -300), {}, "must lie in 0..320"),
            (vllm, put("token_map", np.zeros(96, np.int64)), {}, "entry 1 stands for id 0, which an earlier one does"),
            (vllm, put("token_map", np.full(96, 0.5)), {}, "token_map holds fractions"),
            (vllm, put("medusa_heads.lm_head.weight.more", zeros), {}, "lm_head.weight.more is not understood"),
            ("eagle-bin", drop("fc.weight"), {}, "tensor fc.weight is missing"),
            (
                "eagle-bin",
                cut("fc.weight", slice(None), slice(256)),
                {},
                "fc.weight has shape [256, 256], must have [any, 512]",
            ),
            ("eagle-bin", cut("fc.weight", slice(128)), {}, "fc.weight has shape [128, 512], must have [256, 512]"),
            ("eagle-bin", cut("fc.bias", slice(128)), {}, "fc.bias has shape [128], must have [256]"),
            ("eagle-bin", drop("fc.bias"), {"bias": True}, "tensor fc.bias is missing, but"),
            (
                "eagle-bin",
                put(layer + "input_layernorm.weight", zeros),
                {},
                "layers.0.input_layernorm.weight is not understood",
            ),
            ("eagle-bin", put("layers.1.mlp.up_proj.weight", zeros), {}, "layers.1.mlp.up_proj.weight is not understood"),
            ("eagle-bin", put("midlayer.mlp.up_proj.weight", zeros), {}, "are both layers.0.mlp.up_proj.weight"),
            ("eagle-bin", cut("embed_tokens.weight", slice(310)), {}, "embed_tokens.weight is the target's own"),
            ("eagle-bin", shift("embed_tokens.weight", 1), {}, ""),
            (
                "eagle-bin",
                lambda t: t.update({"embed_tokens.weight": t["embed_tokens.weight"][:310] + 1}),
                {},
                "must have one for each",
            ),
            ("eagle-bin", cut("embed_tokens.weight", slice(None), slice(128)), {}, "embed_tokens.weight has shape [320, 128]"),
            *(
                ("eagle-bin", drop(layer + name + ".weight"), {}, f"tensor {layer}{name}.weight is missing")
                for name in (*checkpoints.PROJECTIONS.values(), "post_attention_layernorm")
            ),
            *(
                (
                    "eagle-bin",
                    cut(layer + name + ".weight", slice(None), slice(2, None)),
                    {},
                    f"tensor {layer}{name}.weight has shape",
                )
                for name in checkpoints.PROJECTIONS.values()
            ),
            ("eagle-bin", None, {"num_attention_heads": "absent"}, "key num_attention_heads is missing"),
            ("eagle-bin", None, {"num_attention_heads": 3}, "key num_key_value_heads is 2, must be a divisor"),
            ("eagle-bin", None, {"num_key_value_heads": 4}, "k_proj.weight has shape [64, 256], must have [128, 256]"),
            ("eagle-bin", None, {"num_attention_heads": 0}, "key num_attention_heads is 0"),
            (
                "eagle-bin",
                None,
                {"num_attention_heads": 512, "num_key_value_heads": 512, "head_dim": None},
                "key head_dim is null",
            ),
            ("eagle-bin", None, {"head_dim": 31}, "key head_dim is 31, must be even"),
            ("eagle-bin", None, {"hidden_act": "gelu"}, 'key hidden_act is "gelu", must be "silu"'),
            ("eagle-bin", None, {"hidden_size": 512}, "key hidden_size is 512, must be 256"),
            ("eagle-bin", None, {"vocab_size": 32000}, "key vocab_size is 32000, must be 320"),
            ("eagle-bin", None, {"rms_norm_eps": -1}, "key rms_norm_eps is -1, must be a positive number"),
            ("eagle-bin", None, {"rope_theta": float("inf")}, "key rope_theta is Infinity"),
            ("eagle-bin", None, {"partial_rotary_factor": 0.5}, "key partial_rotary_factor is 0.5, must be 1"),
            (
                "eagle-bin",
                None,
                {"rope_scaling": {"type": "dynamic", "factor": 2}},
                "must be of type default, linear or llama3",
            ),
            ("eagle-bin", None, {"rope_scaling": {"type": "linear"}}, "rope_scaling: key factor is missing"),
            ("eagle-bin", None, {"rope_scaling": "linear"}, 'key rope_scaling is "linear", must be an object'),
            (
                "eagle-bin",
                None,
                {"rope_scaling": {"type": "llama3", "low_freq_factor": 9}},
                "key low_freq_factor is 9, must be less",
            ),
            (
                "eagle-fused",
                cut(layer + "self_attn.qkv_proj.weight", slice(100)),
                {},
                "qkv_proj.weight has shape [100, 256], must have [256, any]",
            ),
            ("eagle-fused", cut(layer + "mlp.gate_up_proj.weight", slice(191)), {}, "gate_up_proj.weight has shape [191, 256]"),
            ("eagle3-midlayer", drop("norm.weight"), {}, "tensor norm.weight is missing"),
            ("eagle3-midlayer", drop(mid + "hidden_norm.weight"), {}, "fc.weight has shape [256, 768], must have [any, 512]"),
            ("eagle3-midlayer", drop(mid + "input_layernorm.weight"), {}, "layers.0.input_layernorm.weight is missing"),
            ("eagle3-midlayer", put("input_norm.weight", zeros), {}, "tensor input_norm.weight is not understood"),
            ("eagle3-midlayer", put("fc.bias", zeros), {}, "tensor fc.bias is not understood"),
            ("eagle3-midlayer", put(mid + "self_attn.q_norm.weight", zeros), {}, "q_norm.weight is not understood"),
            ("eagle3-midlayer", drop("lm_head.weight"), {}, "lm_head.weight is missing, whose rows d2t names"),
            ("eagle3-midlayer", drop("d2t"), {}, "made for another vocabulary, or its table of ids is missing"),
            ("eagle3-midlayer", cut("d2t", slice(100, None)), {}, "must be a list of ids"),
            ("eagle3-midlayer", cut("d2t", None), {}, "d2t has shape [1, 96], must have [any]"),
            ("eagle3-midlayer", shift("d2t", 300), {}, "as offsets: entry"),
            (("eagle3-midlayer", shift("d2t", -300), {}, "must lie in 0..320")),
            ("eagle3-midlayer", put("d2t", -np.arange(96)), {}, "entry 1 stands for id 0, which an earlier one does"),
            ("eagle3-midlayer", cut("lm_head.weight", slice(90)), {}, "lm_head.weight has shape [90, 256], must have 96 rows"),
            ("eagle3-midlayer", None, {"target_hidden_size": 512}, "key target_hidden_size is 512, must be 256"),
            *(
                ("eagle3-midlayer", None, {key: True}, f"key {key} is true, must be false: this variant")
                for key in convert_eagle.VARIANTS
            ),
            ("eagle3-midlayer", None, {"eagle_config": {"use_aux_hidden_state": False}}, "key use_aux_hidden_state is false"),
            *(
                ("eagle3-midlayer", None, {"eagle_aux_hidden_state_layer_ids": value}, "must be three rising layers of 0 to 2")
                for value in ("absent", [0, 1], [0, 1, 3], [1, 0, 1], [0, 1, True], "0,1,1", [-1, 0, 1])
            ),
            (
                "eagle3-narrow",
                drop("embed_tokens.weight"),
                {},
                "embed_tokens.weight is missing, and the target's own is 256 wide, must be 128",
            ),
            (
                "eagle3-narrow",
                drop("lm_head.weight"),
                {},
                "lm_head.weight is missing, and the target's own is 256 wide, must be 128",
            ),
        ]
        lines = set()
        for name, change, config, part in cases:
            options = ("--type", "f16")
            arguments = self.heads(name, change or (lambda tensors: None), options, **config)
            if part in ("", "embed_tokens.weight is the target's own"):
                status, said = convert(*arguments, "-o", self.folder / "kept.gguf")
                self.assertTrue(status == 0 and part in said, f"{name}: {said}")
                continue
            lines.add(self.refused(part, *arguments))
        if os.environ.get("SHOW_LINES"):
            print(*sorted(line.replace(str(self.folder), "F") for line in lines), sep="\n")

    def test_eagle_needs_its_configuration(self):
        arguments = self.heads("eagle-bin")
        (arguments[1] / "config.json").unlink()
        self.refused("config.json: no such file; it says", *arguments)

    def test_trees_that_are_none(self):
        choices = self.folder / "choices.json"
        for text, part in (
            ("[]", "must be a list of paths"),
            ("{}", "must be a list of paths"),
            ("[[0], []]", "path [] must be a list of ranks"),
            ("[[-1]]", "path [-1] must be"),
            ("[[0], [1.5]]", "path [1.5] must be"),
            ("[[true]]", "path [true] must be"),
            ("[0]", "path 0 must be"),
            ("[[0], [0]]", "path [0] is there twice"),
            ("[[0, 0]]", "path [0, 0] is there without [0]"),
            ("[[0]", "not JSON"),
            (json.dumps([[rank] for rank in range(64)]), "has 64 paths, at most 63"),
        ):
            choices.write_text(text)
            self.refused(part, *self.heads("medusa-legacy", options=("--tree", choices)))
        self.refused("the only names are mc_sim_7b_63", *self.heads("medusa-legacy", options=("--tree", "vicuna")))


if __name__ == "__main__":
    unittest.main()
