"""The root group: turns every error into one line, a JSON object where asked for, and an exit status."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Sequence
from typing import Any

import click

from closedform import __version__
from closedform.hw.errors import ClosedformError, InfeasibleError

from .output import print_json

__all__ = ["Root", "cli", "error_object", "main"]


def error_object(error: ClosedformError | click.ClickException, status: int) -> dict[str, Any]:
    """{"error": ...} as --json prints it; an infeasible request adds resource, need, limit and way out."""
    body: dict[str, Any] = {"type": type(error).__name__, "message": _message(error), "exit_status": status}
    if isinstance(error, click.ClickException):
        body["type"] = "BadInput"
    if isinstance(error, InfeasibleError):
        reason = error.reason
        body["infeasible"] = {
            "resource": reason.resource,
            "needed": reason.needed,
            "limit": reason.limit,
            "unit": reason.unit,
            "where": reason.where,
            "way_out": reason.way_out,
        }
    return {"error": body}


def _message(error: ClosedformError | click.ClickException) -> str:
    text = error.format_message() if isinstance(error, click.ClickException) else str(error)
    return " ".join(text.split())


#: Commands, each in a module of its name, in the order in which --help lists them.
COMMANDS = (
    "emit",
    "derive",
    "check",
    "simulate",
    "profile",
    "bench",
    "predict",
    "select",
    "fit",
    "decode",
    "export",
    "tune",
    "hw",
    "doctor",
)


class Root(click.Group):
    """click's group with our exit statuses; a command is imported when it is asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module = importlib.import_module(f"{__package__}.{cmd_name}")
        command: click.Command = getattr(module, cmd_name)
        return command

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        windows_expand_args: bool = True,
        **extra: Any,
    ) -> Any:
        words = list(sys.argv[1:] if args is None else args)
        try:
            extra |= {"windows_expand_args": windows_expand_args, "complete_var": complete_var}
            status = super().main(words, prog_name or "closedform", standalone_mode=False, **extra)
            sys.stdout.flush()
        except click.exceptions.Exit as request:
            status = request.exit_code
        except click.Abort:
            click.echo("error: interrupted", err=True)
            status = 130
        except click.exceptions.NoArgsIsHelpError as request:
            click.echo(request.format_message(), err=True)
            status = 2
        except click.ClickException as error:
            status = self._report(error, 2, words)
        except ClosedformError as error:
            status = self._report(error, error.exit_status, words)
        except BrokenPipeError:
            # The reader of our output left; flushing at exit must not complain again.
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
            status = 0
        except Exception:
            import traceback

            click.echo(traceback.format_exc(), err=True, nl=False)
            click.echo("error: this is a bug in closedform; please report it with the lines above", err=True)
            status = 1
        sys.exit(status if isinstance(status, int) else 0)

    def _report(self, error: ClosedformError | click.ClickException, status: int, words: list[str]) -> int:
        if "--json" in words:
            print_json(error_object(error, status))
        click.echo(f"error: {_message(error)}", err=True)
        return status


@click.group(cls=Root, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, prog_name="closedform")
def cli() -> None:
    """Tensor kernels for AMD CDNA GPUs from closed formulas.

    The tile sizes of a kernel follow from the operator and the capacities of the GPU, without search. No
    command but `bench` needs a GPU.

    \b
    Examples:
      closedform derive attention --L 16384 --d 128 --hw mi300x --explain
      closedform emit attention --L 16384 --d 128 --dtype bf16 --hw mi300x
      closedform simulate attention --L 512 --d 128 --hw mi300x
      closedform hw list

    Exit status: 0 done, 1 our bug, 2 bad input, 3 no device, 4 infeasible.
    """


def main() -> None:
    """Entry point of the console script."""
    cli()
