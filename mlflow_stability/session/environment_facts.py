"""Says where and how the training was started.

In: this process. Out: names and values, as they become parameters of the run: ``python``, ``system``, ``argv``, and the
versions of the libraries that the script has loaded. Promised: nothing is imported and nobody is asked; secrets on the
command line are hidden.
"""

from __future__ import annotations

import os
import sys

from mlflow_stability.session.secret_arguments import command_line

LIBRARIES = ("accelerate", "datasets", "deepspeed", "lightning", "mlflow", "numpy", "pytorch_lightning", "transformers")
"""Those whose versions are told where the script has loaded them."""


def environment_facts(world_size: int) -> dict[str, str]:
    """What is known of this process."""
    system = os.uname()
    facts = {
        "python": sys.version.split()[0],
        "system": f"{system.sysname} {system.release} {system.machine}",
        "processors": str(os.cpu_count() or ""),
        "argv": command_line(_words()),
        "world_size": str(world_size),
    }
    for name in LIBRARIES:
        version = getattr(sys.modules.get(name), "__version__", None)
        if isinstance(version, str):
            facts[name] = version
    return facts


def _words() -> list[str]:
    """The command line as it was typed, with options of the interpreter such as ``-m``, but without its own path.

    A whole program behind ``-c`` is left out: no rule could find the secrets in it.
    """
    words = list(sys.orig_argv[1:]) or list(sys.argv)
    if "-c" in words[:-1] and sys.argv[:1] == ["-c"]:
        words[words.index("-c") + 1] = "…"
    return words
