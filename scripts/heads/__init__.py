"""What the converters of draft heads share: checkpoints on one side, GGUF sidecars on the other."""

import pathlib
import sys

try:
    import gguf  # noqa: F401
    import numpy  # noqa: F401
except ImportError as error:
    stem = pathlib.Path(sys.argv[0]).stem
    print(f"{stem}: error: needs the Python packages gguf and numpy (pip install gguf numpy): {error}", file=sys.stderr)
    sys.exit(1)
