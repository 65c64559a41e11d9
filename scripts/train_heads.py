#!/usr/bin/env python3
"""Trains a draft head for the GGUF at hand and writes it as a sidecar; needs scripts/requirements-train.txt.

One file, a little over 500 lines, for all that is learnt and how to be read from top to bottom; files are in scripts/heads.

    scripts/train_heads.py eagle3 FEATURES --target MODEL.gguf -o HEAD.gguf [--minutes 25] [--checkpoint FILE]

FEATURES is a folder that `foretoken features` wrote: texts and what the target computed of them. A head learns to guess what
the quantised target itself computes, so its targets are the target's own distributions, made of its hidden rows and its output
matrix; --soft 0 learns from the tokens of the text instead. What heads compute is in models/SIDECARS.md. Letters: B texts side
by side, L rows of each, D width, N tokens that the head is about; row i is of token i and guesses begin with token i + 2.

    medusa   heads k = 0.. of row i guess token i + 2 + k. Loss: cross-entropy, 0.8^k of each. They start as the target's own
             output: blocks add nothing yet. https://arxiv.org/abs/2401.10774
    eagle    a layer makes row i + 1 of row i and token i + 1. Loss: smooth L1 to the target's row, and 0.1 of cross-entropy.
             https://arxiv.org/abs/2401.15077
    eagle3   the same of three layers' rows, for the guess alone, over --unroll steps that read what steps before made ("training-
             time test"). Loss: cross-entropy, 0.8^step of each. https://arxiv.org/abs/2503.01840

--start HEAD goes on from a head that was written before, with other text. With --checkpoint FILE a run that is stopped goes on when it is started again. --minutes counts training of all runs together.
The learning rate falls with whichever of --epochs and --minutes is nearer its end; where --minutes does not cut it short, or
with --steps, the same seed gives the same file on the same machine. One text in --held-out is never trained on; accuracies are
of those, and of weights as they are written.
"""

import argparse
import hashlib
import json
import pathlib
import sys
import time

from heads.features import Features, windows
from heads.sidecar import TYPES, Head, Sidecar, Target, run
from heads.tensor import Refused, Tensor, note, say

import numpy as np  # after heads, which says so if it is missing

try:
    import jax
    import jax.numpy as jnp
    import optax
except ImportError as error:
    sys.exit(f"{pathlib.Path(sys.argv[0]).stem}: error: {error}; pip install -r scripts/requirements-train.txt")

EPS = 1e-5  # of the norms of a layer
FADE = 0.8  # worth of each head or step beside the one before
TOP = 10  # ranks whose accuracy a Medusa sidecar tells


def norm(x, weight):
    return x * jax.lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + EPS) * weight


def shift(x, n):
    """Row i becomes row i + n; the first n are worth nothing."""
    return jnp.roll(x, n, 1) if n else x


class Medusa:
    """Heads on the last row."""

    def __init__(self, options, target, data):
        self.heads, self.blocks, self.own = options.heads, options.blocks, options.own_outputs
        self.ahead, self.depth = 1 + options.heads, options.heads
        self.target = target

    def fresh(self, random, output):
        d, weights = self.target.hidden, {}
        for head in range(self.heads):
            for block in range(self.blocks):
                weights[f"medusa.{head}.res.{block}.weight"] = np.zeros((d, d))
                weights[f"medusa.{head}.res.{block}.bias"] = np.zeros(d)
            if output is not None and self.own:
                weights[f"medusa.{head}.output.weight"] = output
        if output is not None and not self.own:
            weights["output.weight"] = output
        return weights, {}

    def logits(self, w, fixed, batch, depth):
        hidden = batch["hidden"][:, : -self.ahead].astype(jnp.float32)
        for head in range(depth):
            y = hidden
            for block in range(self.blocks):
                name = f"medusa.{head}.res.{block}"
                y = y + jax.nn.silu(y @ w[f"{name}.weight"].T + w[f"{name}.bias"])
            yield y @ w.get(f"medusa.{head}.output.weight", w.get("output.weight", fixed["head"])).T, None

    def guessed(self, depth):
        """By how much the guessed token of a row, and the text that the guess began in, are beyond the row."""
        return depth + 2, 0

    def keys(self, sidecar, ranks):
        sidecar.writer.add_uint32(sidecar.key("embedding_length"), self.target.hidden)
        sidecar.writer.add_uint32(sidecar.key("head_count"), self.heads)
        sidecar.writer.add_uint32(sidecar.key("layer_count"), self.blocks)
        sidecar.writer.add_bool(sidecar.key("shares_output"), not self.own)
        sidecar.writer.add_array(sidecar.key("accuracy"), [float(share) for share in ranks.reshape(-1)])


class Eagle:
    """A layer on pairs of a token and a row, unrolled."""

    def __init__(self, options, target, data):
        self.third, self.target, self.ahead = options.kind == "eagle3", target, 2
        self.depth = options.unroll
        number = target.number
        self.heads = number("attention.head_count")
        self.kv_heads = number("attention.head_count_kv", self.heads)
        self.width = number("attention.key_length", target.hidden // self.heads)
        self.ffn = options.ffn or number("feed_forward_length")
        self.base = float(number("rope.freq_base", 10000.0))
        self.taps = data.taps
        sample = np.linspace(0, len(data.tokens) - 1, min(4096, len(data.tokens))).astype(np.int64)
        rms = lambda name: np.sqrt(np.mean(data.rows(name, sample).astype(np.float32).reshape(len(sample), -1, target.hidden) ** 2, (0, 2)))
        # What is learnt is in units of the rows, so that one learning rate suits all targets.
        self.unit, self.tap_units = float(rms("hidden")[0]), rms("taps") if self.third else None
        self.embedding_unit = float(np.sqrt(np.mean(target.matrix("token_embd.weight")[data.tokens[sample]] ** 2)))

    def fresh(self, random, output):
        """Weights to begin with, and what they are to be multiplied with."""
        d, q, kv, f = self.target.hidden, self.heads * self.width, self.kv_heads * self.width, self.ffn
        normal = lambda rows, cols, share=1.0: random.normal(size=(rows, cols)) * share / np.sqrt(cols)
        read = 2 * d if self.third else d
        weights = {"blk.0.attn_q.weight": normal(q, read), "blk.0.attn_k.weight": normal(kv, read),
                   "blk.0.attn_v.weight": normal(kv, read), "blk.0.attn_output.weight": np.zeros((d, q)),
                   "blk.0.ffn_norm.weight": np.ones(d), "blk.0.ffn_gate.weight": normal(f, d),
                   "blk.0.ffn_up.weight": normal(f, d), "blk.0.ffn_down.weight": np.zeros((d, f))}
        if self.third:
            parts, units = [normal(d, 3 * d, 0.5)[:, : 2 * d], np.eye(d)], np.repeat(1 / self.tap_units, d)
            weights |= {"blk.0.attn_norm.weight": np.ones(d), "blk.0.attn_norm_2.weight": np.ones(d)}
            own = "output_norm.weight" in self.target.tensors
            weights["output_norm.weight"] = self.target.matrix("output_norm.weight") if own else np.ones(d)
            scales = {}
        else:
            parts = [normal(d, d, 0.5), np.eye(d)]
            units = np.repeat([self.unit / self.embedding_unit, 1.0], d)
            scales = {f"blk.0.{name}.weight": 1 / self.unit for name in ("attn_q", "attn_k", "attn_v")}
            scales |= {f"blk.0.{name}.weight": self.unit for name in ("attn_output", "ffn_down")}
        weights["fc.weight"] = np.concatenate(parts, 1)
        if output is not None:
            weights["output.weight"] = output
        return weights, {**scales, "fc.weight": units.astype(np.float32)}

    def turn(self, x):
        """Neighbours of each head turned by their row's number, `[B, L, H, K]`."""
        angle = np.arange(x.shape[1])[:, None] * self.base ** (-np.arange(0, self.width, 2) / self.width)
        cos, sin = (jnp.asarray(f(angle), jnp.float32)[None, :, None] for f in (np.cos, np.sin))
        a, b = x[..., 0::2], x[..., 1::2]
        return jnp.stack([a * cos - b * sin, a * sin + b * cos], -1).reshape(x.shape)

    def logits(self, w, fixed, batch, depth):
        """Logits of each step and the rows they are made of. The pair of row i is token i + 1 and row i.

        Step s makes row i + 1 of what step s - 1 made for row i, and step 0 of the target's. A guess of step s began s rows
        earlier: there it sees the target's pairs up to i - s, then one pair of each step in between, and its own.
        """
        rows = batch["tokens"].shape[1] - self.ahead
        token = fixed["embedding"][batch["tokens"][:, 1 : rows + 1]]
        text, number = batch["text"][:, :rows], np.arange(rows)
        together = text[:, :, None] == text[:, None, :]
        if self.third:
            seen = batch["taps"].astype(jnp.float32) @ w["fc.weight"].T
        else:
            seen = batch["hidden"][:, :rows].astype(jnp.float32)
            if "noise" in batch:  # makes up for rows of its own being worse than the target's
                seen = seen + self.unit * 0.2 * (jax.random.uniform(batch["noise"], seen.shape) - 0.5)
        w = {name.removeprefix("blk.0.").removesuffix(".weight"): matrix for name, matrix in w.items()}
        keys, values = [], []
        for step in range(depth):
            if self.third:
                base, x = seen, jnp.concatenate([norm(token, w["attn_norm"]), norm(seen, w["attn_norm_2"])], -1)
            else:
                x = base = jnp.concatenate([token, seen], -1) @ w["fc"].T
            q, k, v = (x @ w[f"attn_{part}"].T for part in "qkv")
            q = self.turn(q.reshape(*q.shape[:2], self.heads, self.width)) * self.width ** -0.5
            q = q.reshape(*q.shape[:2], self.kv_heads, -1, self.width)
            keys.append(self.turn(k.reshape(*k.shape[:2], self.kv_heads, self.width)))
            values.append(v.reshape(*v.shape[:2], self.kv_heads, self.width))
            visible = together & (number[None, :] <= number[:, None] - step)
            scores = jnp.einsum("blghk,bmgk->bghlm", q, keys[0])
            scores = [jnp.where(visible[:, None, None], scores, -1e30)]
            for back in range(step - 1, -1, -1):  # pairs of steps 1 to this one
                scores.append(jnp.einsum("blghk,blgk->bghl", q, shift(keys[step - back], back))[..., None])
            share = jax.nn.softmax(jnp.concatenate(scores, -1), -1)
            mixed = jnp.einsum("bghlm,bmgk->blghk", share[..., :rows], values[0])
            for i, back in enumerate(range(step - 1, -1, -1)):
                of_pair = jnp.moveaxis(share[..., rows + i], 3, 1)[..., None]
                mixed = mixed + of_pair * shift(values[step - back], back)[:, :, :, None]
            y = base + mixed.reshape(*mixed.shape[:2], -1) @ w["attn_output"].T
            h = norm(y, w["ffn_norm"])
            y = y + (jax.nn.silu(h @ w["ffn_gate"].T) * (h @ w["ffn_up"].T)) @ w["ffn_down"].T
            normed = norm(y, w["output_norm"]) if self.third else y
            yield normed @ w.get("output", fixed["head"]).T, y
            seen = shift(y, 1)

    def guessed(self, depth):
        return 2, depth

    def keys(self, sidecar, ranks):
        writer, key = sidecar.writer, sidecar.key
        for name, value in (("block_count", 1), ("embedding_length", self.target.hidden), ("feed_forward_length", self.ffn),
                            ("attention.head_count", self.heads), ("attention.head_count_kv", self.kv_heads),
                            ("attention.key_length", self.width), ("attention.value_length", self.width),
                            ("rope.dimension_count", self.width)):
            writer.add_uint32(key(name), int(value))
        writer.add_float32(key("attention.layer_norm_rms_epsilon"), EPS)
        writer.add_float32(key("rope.freq_base"), self.base)
        if self.third:
            writer.add_array(key("target_layers"), self.taps)
            writer.add_uint32(key("target_hidden_size"), self.target.hidden)
            writer.add_bool(key("norm_before_residual"), False)


def rounded(x, kind):
    """A matrix as it comes back from a file, its gradient passed on as if it were not rounded."""
    if kind not in ("q4_0", "q8_0") or x.shape[-1] % 32:
        return x
    block = x.reshape(-1, 32)
    most = jnp.take_along_axis(block, jnp.argmax(jnp.abs(block), -1, keepdims=True), -1)
    step = -most / 8 if kind == "q4_0" else jnp.abs(most) / 127
    code = block / jnp.where(step == 0, 1, step)
    code = jnp.clip(jnp.floor(code + 8.5), 0, 15) - 8 if kind == "q4_0" else jnp.round(code)
    back = code * step.astype(jnp.float16).astype(jnp.float32)
    return x + jax.lax.stop_gradient(back.reshape(x.shape) - x)


def moved(before, at, after):
    """Rows `before [N, D]`, moved by the affine map that best takes its rows `at` to `after`: training moves the rows of all
    tokens of an output alike, most of all those that it never had right."""
    wide = np.pad(before, ((0, 0), (0, 1)), constant_values=1.0)
    own = wide[at]
    square = own.T @ own
    square += 0.03 * np.trace(square) / len(square) * np.eye(len(square))
    return before + wide @ np.linalg.solve(square, own.T @ (after - before[at]))


def is_output(name):
    return name.endswith("output.weight") and "attn" not in name


class Trainer:
    """A head, its weights and its data."""

    def __init__(self, options):
        self.options = options
        self.target = target = Target(options.target)
        self.data = data = Features(options.features, target, options.kind)
        self.net = (Medusa if options.kind == "medusa" else Eagle)(options, target, data)
        every = max(2, round(1 / options.held_out))
        held = data.text % every == every - 1 if data.texts >= every else data.text == data.texts - 1
        self.stream, held = np.flatnonzero(~held), np.flatnonzero(held)
        if len(self.stream) <= self.net.ahead or not len(held):
            raise Refused(f"{options.features}: {data.texts} texts of {len(data.tokens)} tokens are too few to train on")
        self.held = windows(held, options.window, self.net.ahead)[: max(options.batch, 65536 // options.window)]
        self.ids = self.vocabulary()
        head = target.matrix("output.weight" if "output.weight" in target.tensors else "token_embd.weight")
        place = np.full(target.vocab, -1, np.int32)
        place[self.ids] = np.arange(len(self.ids))
        output = head[self.ids] if len(self.ids) < target.vocab else None
        self.fixed = {"head": jnp.asarray(head[self.ids]), "place": jnp.asarray(place)}
        if options.kind != "medusa":
            self.fixed["embedding"] = jnp.asarray(target.matrix("token_embd.weight"))
        self.cap = target.number("final_logit_softcapping", 0)
        weights, self.scales = self.net.fresh(np.random.default_rng(options.seed), output)
        if options.start:
            weights = self.begun(weights, place)
        self.weights = {name: jnp.asarray(matrix, jnp.float32) for name, matrix in sorted(weights.items())}
        self.optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.scale_by_adam(0.9, 0.95))
        self.state, self.step, self.elapsed = self.optimizer.init(self.weights), 0, 0.0
        self.per_epoch = max(1, len(self.stream) // (options.window * options.batch))
        self.steps = options.steps if options.steps is not None else max(1, round(options.epochs * self.per_epoch))
        self.update = jax.jit(self.update_of, donate_argnums=(0, 1))
        self.measure = jax.jit(self.measure_of)

    def begun(self, weights, place):
        """The weights of a head that was written before; rows of tokens that it has none of are the target's, `moved` as its were."""
        head = Head(self.options.start, self.options.kind, self.target)
        at = place[head.ids]
        known = at >= 0
        if not known.any():
            raise Refused(f"{head.path}: is about none of the tokens that these texts have most often")
        for name, fresh in weights.items():
            held = head.matrix(name) / self.scales.get(name, 1.0)
            if is_output(name) and held.shape == (len(head.ids), fresh.shape[1]):
                rows = moved(fresh, at[known], held[known])
                rows[at[known]] = held[known]
                held = rows
            if held.shape != fresh.shape:
                raise Refused(f"{head.path}: tensor {name} has shape {held.shape}, must be {fresh.shape} with these options")
            weights[name] = held
        note(f"starts with {head.path}, {int(known.sum())} of its {len(head.ids)} tokens")
        return weights

    def vocabulary(self):
        """The tokens that are guessed, rising: those that answers have most often, then those of the lowest ids."""
        size = self.options.vocab if 0 < self.options.vocab < self.target.vocab else self.target.vocab
        data, train = self.data, self.stream
        counts = np.bincount(data.tokens[train], data.weights[train].astype(np.float64), self.target.vocab)
        ids = np.sort(np.argsort(-counts, kind="stable")[:size]).astype(np.int64)
        note(f"{data.texts} texts, {len(train)} tokens to train on; {size} tokens make up {counts[ids].sum() / counts.sum():.2%} of the answers")
        return ids

    def kind_of(self, name):
        return self.options.output_type if is_output(name) else self.options.type

    def effective(self, weights):
        """Weights as the engine will read them."""
        scaled = {name: matrix * self.scales.get(name, 1.0) for name, matrix in weights.items()}
        return {name: rounded(m, self.kind_of(name)) if m.ndim == 2 else m for name, m in scaled.items()}

    def wanted(self, fixed, batch):
        """The target's own distribution over the head's tokens after each row, `[B, L + ahead, N]`."""
        logits = batch["hidden"].astype(jnp.float32) @ fixed["head"].T
        logits = self.cap * jnp.tanh(logits / self.cap) if self.cap else logits
        return jax.nn.softmax(logits, -1)

    def losses(self, weights, fixed, batch, depth):
        """For each head or step: the loss of its rows, what they weigh, and the rank of the right token."""
        rows = batch["tokens"].shape[1] - self.net.ahead
        wanted, place = self.wanted(fixed, batch), fixed["place"][batch["tokens"]]
        for step, (logits, made) in enumerate(self.net.logits(self.effective(weights), fixed, batch, depth)):
            far, back = self.net.guessed(step)
            cut = lambda x, at: x[:, at : at + rows]
            right = cut(place, far)
            begun = shift(cut(batch["text"], 0), back)
            counts = (cut(batch["text"], far) == begun) & (begun >= 0) & (np.arange(rows) >= back)
            counts = counts * cut(batch["weights"], far)
            score = jnp.take_along_axis(logits, jnp.maximum(right, 0)[..., None], -1)[..., 0]
            soft = jnp.sum(cut(wanted, far - 1) * logits, -1)
            total, share = jax.nn.logsumexp(logits, -1), self.options.soft
            loss = total - share * soft - (1 - share) * score
            if self.options.kind == "eagle":
                row = cut(batch["hidden"], 1).astype(jnp.float32)
                regression = jnp.mean(optax.huber_loss(made / self.net.unit, row / self.net.unit), -1)
                loss = regression + self.options.token_loss * loss
            rank = jnp.where(right >= 0, jnp.sum(logits > score[..., None], -1), 1 << 30)
            # A token that the head has no row for teaches nothing, but counts as a miss.
            yield loss, counts * (right >= 0), rank, counts

    def loss(self, weights, fixed, batch, depth):
        total, whole = 0.0, 0.0
        for step, (loss, counts, _, _) in enumerate(self.losses(weights, fixed, batch, depth)):
            total += FADE**step * jnp.sum(loss * counts) / jnp.maximum(jnp.sum(counts), 1)
            whole += FADE**step
        return total / whole

    def update_of(self, weights, state, fixed, batch, rate):
        loss, slope = jax.value_and_grad(self.loss)(weights, fixed, batch, self.net.depth)
        change, state = self.optimizer.update(slope, state, weights)
        return {name: w - rate * change[name] for name, w in weights.items()}, state, loss

    def measure_of(self, weights, fixed, batch):
        parts = list(self.losses(weights, fixed, batch, self.depth()))
        ranks, counts = jnp.stack([part[2] for part in parts]), jnp.stack([part[3] for part in parts])
        return self.loss(weights, fixed, batch, self.net.depth), ranks, counts

    def depth(self):
        """How far accuracy is measured."""
        return self.net.depth if self.options.kind == "medusa" else max(self.net.depth, self.options.measured)

    def measured(self):
        """Loss, accuracy by depth and rank, and tokens a round that a chain of best guesses makes, on held-out text."""
        losses, hits, total, rounds, roots = [], 0, 0, 0.0, 0
        for index in np.array_split(self.held, -(-len(self.held) // self.options.batch)):
            batch = self.data.batch(index, self.net.ahead, self.options.kind == "eagle3")
            loss, ranks, counts = map(np.asarray, self.measure(self.weights, self.fixed, batch))
            losses.append(float(loss) * len(index))
            counted = counts > 0
            hits = hits + np.stack([((ranks == rank) & counted).sum((1, 2)) for rank in range(TOP)], 1)
            total = total + counted.sum((1, 2))
            # Guesses that follow one another: of one row, or each of the row after.
            lag = [self.net.guessed(step)[1] for step in range(len(ranks))]
            last = ranks.shape[2] - max(lag)
            chain = np.stack([(ranks[s] == 0)[:, lag[s] : lag[s] + last] for s in range(len(lag))])
            whole = np.logical_and.reduce([counted[s][:, lag[s] : lag[s] + last] for s in range(len(lag))])
            rounds += (1 + np.logical_and.accumulate(chain).sum(0))[whole].sum()
            roots += whole.sum()
        return sum(losses) / len(self.held), hits / np.maximum(total, 1)[:, None], rounds / max(roots, 1)

    def tell(self):
        loss, ranks, rounds = self.measured()
        right = " ".join(f"{share:.3f}" for share in ranks[:, 0])
        say(f"step {self.step}: held-out loss {loss:.4f}, right {right}, {rounds:.3f} tokens a round")
        return loss, ranks

    def digest(self):
        """What a checkpoint must agree with."""
        free = ("output", "minutes", "epochs", "steps", "checkpoint", "save_every", "features", "target", "measured")
        settled = {name: value for name, value in vars(self.options).items() if name not in free}
        known = [self.data.meta.get("input"), len(self.data.tokens), self.target.vocab_hash]
        return hashlib.sha256(json.dumps([settled, known], sort_keys=True).encode()).hexdigest()

    def save(self):
        path = pathlib.Path(self.options.checkpoint)
        unfinished = path.with_name(f".{path.name}.part")
        leaves = {f"leaf{i}": leaf for i, leaf in enumerate(jax.tree.leaves((self.weights, self.state)))}
        with open(unfinished, "wb") as file:
            np.savez(file, digest=self.digest(), step=self.step, elapsed=self.elapsed, **leaves)
        unfinished.replace(path)

    def resume(self):
        path = self.options.checkpoint
        try:
            held = np.load(path)
            same = str(held["digest"]) == self.digest()
            fresh, shape = jax.tree.flatten((self.weights, self.state))
            leaves = [jnp.asarray(held[f"leaf{i}"], leaf.dtype) for i, leaf in enumerate(fresh)] if same else []
            self.step, self.elapsed = int(held["step"]), float(held["elapsed"])
        except FileNotFoundError:
            return
        except (OSError, ValueError, KeyError, EOFError) as error:
            raise Refused(f"{path}: is no checkpoint: {str(error)[:120]}")
        if not same:
            raise Refused(f"{path}: was made with other options or features; remove it or name another file")
        self.weights, self.state = jax.tree.unflatten(shape, leaves)
        note(f"goes on from {path}, step {self.step}, {self.elapsed / 60:.1f} minutes")

    def index_of(self, step):
        """Rows of a step: windows begin elsewhere in every epoch and come in another order."""
        epoch, at = divmod(step, self.per_epoch)
        if getattr(self, "epoch", None) != epoch:
            random = np.random.default_rng([self.options.seed, epoch])
            size = self.options.window
            self.epoch, self.index = epoch, windows(self.stream, size, self.net.ahead, int(random.integers(size)))
            self.index = random.permutation(self.index)
        return self.index[at * self.options.batch : (at + 1) * self.options.batch]

    def train(self):
        options, key = self.options, jax.random.key(self.options.seed)
        started, told, saved = time.monotonic() - self.elapsed, time.monotonic(), time.monotonic()
        losses, limit = [], options.minutes * 60
        while self.step < self.steps and self.elapsed < limit:
            done = max(self.step / self.steps, self.elapsed / limit if limit < float("inf") else 0.0)
            rate = options.rate * min(1.0, (self.step + 1) / 20) * (1 - done)
            batch = self.data.batch(self.index_of(self.step), self.net.ahead, options.kind == "eagle3")
            if options.kind == "eagle":
                batch["noise"] = jax.random.fold_in(key, self.step)
            self.weights, self.state, loss = self.update(self.weights, self.state, self.fixed, batch, rate)
            losses.append(float(loss))
            self.step, now = self.step + 1, time.monotonic()
            self.elapsed = now - started
            if not np.isfinite(losses[-1]):
                raise Refused(f"step {self.step}: the loss is {losses[-1]}; try a lower --rate")
            if now - told > 20 or self.step == self.steps:
                speed = len(losses) * options.window * options.batch / (now - told)
                say(f"step {self.step} of {self.steps}, {self.elapsed / 60:.1f} min: loss {np.mean(losses):.4f}, {speed:.0f} tok/s")
                losses, told = [], now
            if options.checkpoint and (now - saved > options.save_every * 60 or self.step == self.steps):
                self.save()
                self.tell()
                saved = told = time.monotonic()
                started = saved - self.elapsed  # measuring is not training
        if options.checkpoint:
            self.save()

    def write(self, loss, ranks):
        options = self.options
        name = f"{self.target.path.stem} {options.kind}"
        sidecar = Sidecar(options.kind, self.target, options.output, options.type, name)
        writer = sidecar.writer
        self.net.keys(sidecar, ranks)
        texts = self.data.meta.get("input", "")[:16]
        writer.add_string("spec.training.data", f"{self.data.texts} texts, {self.step} steps of {options.window * options.batch} tokens, input {texts}")
        writer.add_uint64("spec.training.tokens", len(self.stream))
        writer.add_float32("spec.training.loss", float(loss))
        writer.add_array("spec.training.accuracy", [float(share) for share in ranks[:, 0]])
        for name, matrix in self.weights.items():
            values = np.asarray(matrix * self.scales.get(name, 1.0), np.float32)
            tensor = Tensor("trained", name, "<f4", values.shape, lambda values=values: values)
            if values.ndim == 1:
                sidecar.vector(name, tensor)
            else:
                sidecar.matrix(name, tensor, self.kind_of(name))
        if len(self.ids) < self.target.vocab:
            sidecar.reduced(self.ids)
        sidecar.write()


def arguments():
    parser = argparse.ArgumentParser(description="Trains a draft head for a GGUF model and writes it as a sidecar.")
    add = parser.add_argument
    add("kind", choices=("medusa", "eagle", "eagle3"))
    add("features", help="folder that `foretoken features` wrote")
    add("--target", required=True, help="GGUF file of the model that the features are of")
    add("-o", "--output", required=True, help="GGUF file to write")
    add("--vocab", type=int, default=8192, help="tokens that the head is about; 0 is all, with the target's own output (default 8192)")
    add("--type", choices=TYPES, default="q4_0", help="format of the matrices (default q4_0)")
    add("--output-type", choices=TYPES, help="format of the output matrix (default that of the others)")
    add("--minutes", type=float, default=float("inf"), help="train at most so long, all runs together (default: no limit)")
    add("--epochs", type=float, default=4.0, help="how often the text is gone through (default 4)")
    add("--steps", type=int, help="steps, instead of --epochs; 0 writes an untrained head")
    add("--start", metavar="HEAD", help="GGUF of a head to start with, to go on learning from other text; same kind, same widths")
    add("--checkpoint", help="file to keep the state in, and to go on from")
    add("--save-every", type=float, default=3.0, metavar="MINUTES", help="how often (default 3)")
    add("--batch", type=int, default=2, help="windows of a step (default 2)")
    add("--window", type=int, default=512, help="tokens of a window (default 512)")
    add("--rate", type=float, default=1e-3, help="learning rate (default 0.001)")
    add("--soft", type=float, default=1.0, help="share of the target's distribution in what is learnt; the rest is the text's token (default 1)")
    add("--held-out", type=float, default=0.05, help="share of texts that are kept to measure on (default 0.05)")
    add("--seed", type=int, default=0)
    add("--heads", type=int, default=4, help="medusa: heads (default 4)")
    add("--blocks", type=int, default=1, help="medusa: residual blocks of a head (default 1)")
    add("--own-outputs", action="store_true", help="medusa: an output matrix for each head, not one for all")
    add("--unroll", type=int, help="eagle, eagle3: steps that are trained (default 1 and 3)")
    add("--measured", type=int, default=5, help="eagle, eagle3: steps that are measured (default 5)")
    add("--ffn", type=int, help="eagle, eagle3: feed-forward width (default: the target's)")
    add("--token-loss", type=float, default=0.1, help="eagle: share of cross-entropy (default 0.1)")
    options = parser.parse_args()
    options.output_type = options.output_type or options.type
    options.unroll = options.unroll or (1 if options.kind == "eagle" else 3)
    if min(options.batch, options.window, options.heads, options.blocks, options.unroll) < 1 or not 0 < options.held_out <= 0.5:
        parser.error("--batch, --window, --heads, --blocks and --unroll must be at least 1, --held-out in 0 to 0.5")
    if options.own_outputs and not 0 < options.vocab:
        parser.error("--own-outputs needs a --vocab")
    return options


def main():
    trainer = Trainer(arguments())
    if trainer.options.checkpoint:
        trainer.resume()
    if not trainer.step:
        trainer.tell()
    try:
        trainer.train()
    except KeyboardInterrupt:
        if trainer.options.checkpoint:
            trainer.save()
        raise
    trainer.write(*trainer.tell())


if __name__ == "__main__":
    run(main)
