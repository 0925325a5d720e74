"""Host functions that every emitted file ends with: streams, and what its main() stands on."""

from __future__ import annotations

from .emit_text import join, piece

__all__ = ["foot"]

_STREAM_OF = '''
def stream_of(tensor, stream):
    """The stream of a launch; None: the current one of the tensor's GPU. ValueError for a tensor that is on none."""
    if not tensor.is_cuda:
        raise ValueError(f"tensors must be on a GPU, not on {tensor.device}")
    return fx.Stream(torch.cuda.current_stream(tensor.device) if stream is None else stream)
'''

_IS_TARGET = '''
def is_target():
    """Whether the first GPU of this machine is a TARGET; says so where it is not."""
    on_rocm = torch.version.hip is not None and torch.cuda.is_available()
    arch = torch.cuda.get_device_properties(0).gcnArchName.split(":")[0] if on_rocm else None
    if arch != TARGET:
        print(f"no {TARGET} GPU here (found {arch or 'none'}): nothing was run")
    return arch == TARGET
'''

_MEDIAN_MS = '''
def median_ms(call):
    """Median of 20 calls on the GPU in milliseconds, after 5 that warm up."""
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    times = []
    for _ in range(25):
        begin.record()
        call()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end))
    return sorted(times[5:])[10]
'''

_MAX_ERROR = '''
def max_error(got, want):
    """Largest error relative to the largest finite magnitude of the row; infinite where only one is not finite."""
    scale = want.nan_to_num(0.0, 0.0, 0.0).abs().amax(-1, keepdim=True).clamp_min(torch.finfo(torch.float32).tiny)
    same = (got == want) | (got.isnan() & want.isnan())
    error = ((got.double() - want).abs() / scale).nan_to_num(math.inf, math.inf).masked_fill(same, 0.0)
    return error.max().item() if want.numel() else 0.0
'''

_MAIN = """
if __name__ == "__main__":
    sys.exit(main())
"""


def foot(rows: bool = True, kernel: bool = True) -> str:
    """The end of an emitted file. rows: with max_error() of rows; kernel: it has a kernel of its own to launch."""
    parts = [*([_STREAM_OF] if kernel else []), *([_MAX_ERROR] if rows else []), _IS_TARGET, _MEDIAN_MS, _MAIN]
    return join(*map(piece, parts))
