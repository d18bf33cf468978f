"""Says what was probably meant by an option that there is not.

In: click's error. Out: the same, with the option that does what was asked for. Promised: only options that the command
has are named; where none fits, click's own guess stands.
"""

from __future__ import annotations

import click

FORM, FILE = "--output-format", "--output"
ENDINGS = {"markdown": "md"}
"""Of those forms whose files do not end in their name."""
OTHER_WORDS = {"md": "markdown", "text": "rich", "format": "", "out": "", "file": "", "o": "", "f": ""}
"""What people also type; empty: something about the output, of no certain form."""


def with_a_hint(error: click.ClickException) -> click.ClickException:
    """The error as it is shown."""
    if not isinstance(error, click.NoSuchOption) or error.ctx is None:
        return error
    forms = next((_choices(each) for each in error.ctx.command.params if FORM in each.opts), ())
    typed = error.option_name.lstrip("-").lower()
    form = OTHER_WORDS.get(typed, typed)
    if not forms or (form and form not in forms):
        return error
    if not form:
        said = f"{FORM} takes {', '.join(forms)}; {FILE} FILE writes to a file, in the form that its ending says."
    elif form == "rich":
        said = f"Write {FORM} rich, which is how it looks without it."
    else:
        said = f"Write {FORM} {form}, or {FILE} FILE.{ENDINGS.get(form, form)}."
    return click.UsageError(f"No such option '{error.option_name}'. {said}", error.ctx)


def _choices(option: click.Parameter) -> tuple[str, ...]:
    return tuple(map(str, option.type.choices)) if isinstance(option.type, click.Choice) else ()
