"""The reference of the command, from the application itself: every command, its example, its arguments and options."""

import re

import typer

from stratafl.cli.app import app

_OTHERS = "Options"


def commands_page() -> str:
    """Markdown with a section for each command, and a table of all commands before them."""
    root = typer.main.get_command(app)
    commands = [*_leaves(root, ["strata"])]
    rows = [f"| [`{' '.join(path)}`](#{_anchor(path)}) | {_first_line(command)} |" for path, command in commands]
    index = "\n".join(["| command | what it does |", "|---|---|", *rows])
    return "\n\n".join([index, *(_section(path, command) for path, command in commands)]) + "\n"


def _leaves(command, path):
    for name, child in getattr(command, "commands", {}).items():
        if child.hidden:
            continue
        if getattr(child, "commands", None):
            yield from _leaves(child, [*path, name])
        else:
            yield [*path, name], child


def _anchor(path):
    return "-".join(path)


def _section(path, command):
    lines = [f"## `{' '.join(path)}` {{ #{_anchor(path)} }}", _plain(command.help or "")]
    if example := _example(command):
        lines.append(f"```console\n$ {example}\n```")
    arguments = [each for each in command.params if each.param_type_name == "argument"]
    usage = " ".join([*path, *(_argument(each) for each in arguments), "[OPTIONS]"])
    lines.append(f"Usage: `{usage}`")
    if arguments:
        rows = [(f"`{_argument(each)}`", _default(each), _plain(getattr(each, "help", "") or "")) for each in arguments]
        lines.append(_table(("argument", "default", "meaning"), rows))
    for title, options in _panels(command).items():
        if title != _OTHERS or len(_panels(command)) > 1:
            lines.append(f"**{title}**")
        rows = [(_flags(each), _default(each), _plain(each.help or "")) for each in options]
        lines.append(_table(("option", "default", "meaning"), rows))
    return "\n\n".join(filter(None, lines))


def _panels(command):
    """Options by the panel in which help shows them."""
    panels: dict[str, list] = {}
    for each in command.params:
        if each.param_type_name == "option" and not getattr(each, "hidden", False) and each.name != "help":
            panels.setdefault(getattr(each, "rich_help_panel", None) or _OTHERS, []).append(each)
    return panels


def _argument(argument):
    name = (argument.metavar or argument.name).upper().strip("[]")
    return name if argument.required else f"[{name}]"


def _flags(option):
    names = [*option.opts, *option.secondary_opts]
    value = "" if option.is_flag or not option.metavar else f" {option.metavar}"
    return ", ".join(f"`{name}{value if name == option.opts[0] else ''}`" for name in names)


def _default(parameter):
    value = parameter.default
    if value is True:
        return "on"
    if isinstance(value, str | int | float) and value not in ("", False):
        return f"`{value}`"
    return "required" if parameter.required else "–"


def _example(command):
    return getattr(command, "example", None) or ""


def _first_line(command):
    return _plain(command.help or "").partition("\n\n")[0].replace("\n", " ")


def _plain(text):
    """Without the markup of rich, and with settings in code."""
    text = re.sub(r"\[/?[a-z]*\]", "", text.replace("\\[", "[")).replace("\b\n", "")
    return "\n\n".join(" ".join(part.split()) for part in re.split(r"\n\s*\n", text.strip())).replace("|", "\\|")


def _table(head, rows):
    lines = [f"| {' | '.join(row)} |" for row in (head, *rows)]
    return "\n".join([lines[0], "|---" * len(head) + "|", *lines[1:]])
