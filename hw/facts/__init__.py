"""Hardware facts as CSV tables; every row names its source, and `status` says how well the fact is known.

targets.csv         what all parts of a target share: LDS, registers, waves, what code may use
gpus.csv            what a part adds (CUs, clock, caches, memory), and the inputs that the paper prints
mfma.csv            one dense matrix instruction a row: shape, types, clocks, maps, how it is emitted
fragment_maps.csv   the maps that mfma.csv names; "lane r16 k4*4; elem k4" reads in `hw/fragments.py`
lds_phases.csv      lanes that share a cycle of an LDS access
model_gpus.csv      GPUs that only the latency model knows, complete in themselves
model_atoms.csv     their matrix instructions: shape, type and clocks of one wave's share
published_peaks.csv peaks that vendors print; tests hold the computed ones against them

Status: read (a text of the vendor or of LLVM), observed (a compiler's output), measured (by others, on the
part), printed (by the paper), computed, inferred, secondhand (quoted by others), not stated.
"""
