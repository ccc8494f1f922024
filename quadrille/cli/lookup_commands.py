"""The commands that list what Quadrille knows: models, topologies, file schemas, shell completion."""

import sys
from typing import Annotated

import click

from quadrille.cli.app import app
from quadrille.cli.command_declarations import argument

SHELLS = ("bash", "zsh", "fish")
SCHEMAS = ("record", "machine", "experiment")


def models_known() -> list[str]:
    """The names of the models that --gpt accepts."""
    from quadrille.algorithms.training.model_shapes import SHAPES

    return list(SHAPES)


SIZES = ("layers", "hidden", "heads", "sequence", "parameters")
MORE_SIZES = (*SIZES, "key_value_heads", "mlp", "vocabulary")


def _trait_text(value: object) -> str:
    """The value of a trait for a table: yes or no, a number with commas, or a word.

    >>> _trait_text(True), _trait_text(50.0), _trait_text(4096), _trait_text("rms")
    ('yes', '50', '4,096', 'rms')
    """
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:,.12g}" if isinstance(value, int | float) else str(value)


@app.command()
def models(
    name: Annotated[str, argument("[NAME]", "One model, with all its sizes.", complete=models_known)] = "",
) -> None:
    """List the models that --gpt takes by name."""
    from quadrille.algorithms.training.model_files import find_shape
    from quadrille.algorithms.training.model_shapes import SHAPES
    from quadrille.experiments.output.tables import print_tables, table

    if not name:
        rows = [(shape.name, *(f"{getattr(shape, size):,}" for size in SIZES)) for shape in SHAPES.values()]
        print_tables(table("", ("model", *SIZES), rows))
        return
    shape = find_shape(name)
    rows = [(size.replace("_", " "), f"{getattr(shape, size):,}") for size in MORE_SIZES]
    options = shape.architecture.options
    traits = [(name.replace("_", " "), _trait_text(options[name])) for name in options if name != "key_heads"]
    if experts := shape.experts:
        traits += [("experts", f"{experts.count}, {experts.chosen} a token, {experts.inner:,} wide")]
        traits += [("parameters of a token", f"{shape.active_parameters:,}")]
    traits += [("not followed", text) for text in shape.approximations]
    print_tables(table(shape.name, ("size", ""), rows, traits))


def families_known() -> list[str]:
    """The names of the topology families."""
    from quadrille.topologies.build import families

    return list(families())


@app.command()
def topologies(
    name: Annotated[str, argument("[FAMILY]", "One family, with all its arguments.", complete=families_known)] = "",
) -> None:
    """List the families of topologies, and their arguments."""
    from quadrille.algorithms.errors import InputError
    from quadrille.topologies.build import families

    family_of = families()
    if name and name not in family_of:
        raise InputError(f"topology family {name!r:.40} is unknown; there are {', '.join(family_of)}")
    if name:
        family = family_of[name]
        click.echo(f"{name}:{','.join(f'{argument}=…' for argument in family.needed)}")
        click.echo(f"more: {', '.join(family.optional)}\n\n{family.described}")
        return
    for word, family in family_of.items():
        click.echo(f"{word:<16} {', '.join(family.needed) or '-'}")


@app.command()
def schema(
    name: Annotated[str, argument("NAME", "record, machine or experiment.", complete=lambda: SCHEMAS)],
) -> None:
    """Print the JSON Schema of record, machine or experiment files."""
    import msgspec

    from quadrille.algorithms.errors import InputError

    if name not in SCHEMAS:
        raise InputError(f"schema {name!r:.40}: accepted are {', '.join(SCHEMAS)}")
    described = experiment_schema() if name == "experiment" else struct_schema(name)
    click.echo(msgspec.json.format(msgspec.json.encode(described), indent=2).decode())


def struct_schema(name: str) -> dict[str, object]:
    """The JSON Schema of a record or a machine file."""
    import msgspec

    if name == "record":
        from quadrille.algorithms.formats.record import SCHEMA, Record

        described = msgspec.json.schema(Record)
    else:
        from quadrille.topologies.machines.machine import SCHEMA, Machine

        described = msgspec.json.schema(Machine)
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": SCHEMA, **described}


def experiment_schema() -> dict[str, object]:
    """The JSON Schema of an experiment file: a key for each flag of `simulate`."""
    from quadrille.cli.experiment_files import SCHEMA, options_of

    command = app.get_command(click.Context(app), "simulate")
    assert command is not None
    keys = {name: key_schema(option) for name, option in options_of(command).items() if name != "from"}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": SCHEMA,
        "type": "object",
        "properties": {"schema": {"const": SCHEMA}, **keys},
        "additionalProperties": False,
    }


def key_schema(option: click.Option) -> dict[str, object]:
    """The JSON Schema of one key of an experiment file."""
    if option.is_flag:
        return {"type": "boolean", "description": option.help or ""}
    return {"type": ["string", "number", "array", "object"], "description": option.help or ""}


@app.command()
def completion(
    shell: Annotated[str, argument("SHELL", "bash, zsh or fish.", complete=lambda: SHELLS)],
) -> None:
    """Print a script that completes commands in a shell.

    As: quadrille completion bash > ~/.local/share/bash-completion/completions/quadrille
    """
    from click.shell_completion import get_completion_class

    from quadrille.algorithms.errors import InputError

    completion = get_completion_class(shell) if shell in SHELLS else None
    if completion is None:
        raise InputError(f"shell {shell!r:.40}: accepted are {', '.join(SHELLS)}")
    sys.stdout.write(completion(app, {}, "quadrille", "_QUADRILLE_COMPLETE").source())
