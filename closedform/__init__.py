"""Tensor kernels for AMD CDNA GPUs from closed formulas."""

from pathlib import Path

# In a checkout the four rooms lie side by side; an installed package holds them inside this folder.
if not (Path(__file__).parent / "hw").is_dir():
    __path__.append(str(Path(__file__).resolve().parent.parent))

__version__ = "0.1.0"
