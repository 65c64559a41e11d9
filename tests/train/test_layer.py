"""What the trainer computes of an EAGLE layer in unrolled steps, against pairs run one by one as the engine runs them."""

import pathlib
import sys
import types
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "scripts"))

import gguf
import numpy as np
import train_heads as trainer

ROWS, WIDTH, TOKENS, HEADS, KV_HEADS, HEAD = 12, 24, 30, 6, 3, 4
TEXT = [0] * 5 + [1] * 9  # two texts in a window, and two rows ahead


def norm(x, weight):
    return x * weight / np.sqrt((x * x).mean() + trainer.EPS)


def turned(x, position):
    out = x.reshape(-1, HEAD).copy()
    for i in range(HEAD // 2):
        angle = position * 100.0 ** (-2 * i / HEAD)
        a, b = out[:, 2 * i].copy(), out[:, 2 * i + 1].copy()
        out[:, 2 * i], out[:, 2 * i + 1] = a * np.cos(angle) - b * np.sin(angle), a * np.sin(angle) + b * np.cos(angle)
    return out


def pair(w, third, cache, token, seen):
    """The row that comes after the pairs of a cache and one more."""
    if third:
        base, x = seen, np.concatenate([norm(token, w["blk.0.attn_norm.weight"]), norm(seen, w["blk.0.attn_norm_2.weight"])])
    else:
        base = x = w["fc.weight"] @ np.concatenate([token, seen])
    q, k, v = (w[f"blk.0.attn_{part}.weight"] @ x for part in "qkv")
    cache.append((turned(k, len(cache)), v.reshape(-1, HEAD)))
    q, mixed = turned(q, len(cache) - 1), []
    for head in range(HEADS):
        group = head // (HEADS // KV_HEADS)
        share = np.exp([q[head] @ k[group] / np.sqrt(HEAD) for k, _ in cache])
        mixed.append(sum(s * v[group] for s, (_, v) in zip(share / share.sum(), cache)))
    y = base + w["blk.0.attn_output.weight"] @ np.concatenate(mixed)
    h = norm(y, w["blk.0.ffn_norm.weight"])
    gate = w["blk.0.ffn_gate.weight"] @ h
    return y + w["blk.0.ffn_down.weight"] @ (gate / (1 + np.exp(-gate)) * (w["blk.0.ffn_up.weight"] @ h))


class Layer(unittest.TestCase):
    def test_unrolled_steps_are_pairs_one_by_one(self):
        for third in (False, True):
            random = np.random.default_rng(third)
            net = trainer.Eagle.__new__(trainer.Eagle)
            net.third, net.ahead, net.heads, net.kv_heads, net.width, net.base, net.ffn = third, 2, HEADS, KV_HEADS, HEAD, 100.0, 40
            net.target = types.SimpleNamespace(hidden=WIDTH, tensors={})
            net.unit, net.embedding_unit, net.tap_units = 1.0, 1.0, np.ones(3)
            weights, _ = net.fresh(random, random.normal(size=(TOKENS, WIDTH)))
            w = {name: random.normal(size=matrix.shape) * 0.15 for name, matrix in weights.items()}
            embedding = random.normal(size=(TOKENS, WIDTH))
            tokens = random.integers(TOKENS, size=ROWS + 2)
            hidden, taps = random.normal(size=(ROWS + 2, WIDTH)), random.normal(size=(ROWS, 3 * WIDTH))
            batch = {"tokens": tokens[None], "text": np.array(TEXT)[None], "hidden": hidden[None], "taps": taps[None]}
            wide = {name: np.float32(matrix) for name, matrix in w.items()}
            steps = list(net.logits(wide, {"embedding": np.float32(embedding), "head": None}, batch, 4))
            shown = taps @ w["fc.weight"].T if third else hidden
            compared = 0
            for step, (logits, _) in enumerate(steps):
                far, back = net.guessed(step)
                for row in range(step, ROWS):
                    root = row - step
                    if TEXT[root] != TEXT[row + far]:
                        continue
                    begin, cache, y = TEXT.index(TEXT[root]), [], None
                    for at in range(begin, row + 1):
                        y = pair(w, third, cache, embedding[tokens[at + 1]], shown[at] if at <= root else y)
                    normed = norm(y, w["output_norm.weight"]) if third else y
                    np.testing.assert_allclose(logits[0, row], w["output.weight"] @ normed, rtol=1e-3, atol=1e-3)
                    self.assertEqual(back, step)
                    compared += 1
            self.assertEqual(compared, 10 + 8 + 6 + 4)


class Rounding(unittest.TestCase):
    def test_weights_are_rounded_as_the_file_has_them(self):
        random = np.random.default_rng(0)
        x = np.float32(random.normal(size=(16, 96)))
        x[3] = 0
        x[4, :32] = np.linspace(-1, 1, 32)
        for name in ("q4_0", "q8_0"):
            kind = trainer.TYPES[name]
            file = gguf.quants.dequantize(gguf.quants.quantize(x, kind), kind)
            np.testing.assert_allclose(trainer.rounded(x, name), file, rtol=1e-6, atol=1e-7)

class Moved(unittest.TestCase):
    def test_new_rows_go_where_training_took_the_others(self):
        random = np.random.default_rng(1)
        before = random.normal(size=(300, 32))
        turn, by = random.normal(size=(32, 32)) / 32**0.5, random.normal(size=32)
        trained = before + before @ turn + by
        at = np.arange(0, 300, 2)
        after = trained[at] + random.normal(size=(150, 32)) * 0.02
        error = lambda rows: np.linalg.norm(rows - trained[1::2]) / np.linalg.norm(trained[1::2] - before[1::2])
        self.assertLess(error(trainer.moved(before, at, after)[1::2]), 0.2)
        self.assertGreater(error(before[1::2] + (after - before[at]).mean(0)), 0.5)
        # Fewer rows than columns: nothing is made up, rows stay nearer to where they belong than if left alone.
        few = at[:8]
        self.assertLess(error(trainer.moved(before, few, trained[few])[1::2]), 1.0)


if __name__ == "__main__":
    unittest.main()
