"""Reads the fenced blocks of README.md and of the pages below docs/, and the commands between backquotes."""
import collections
import glob
import os
import re

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.realpath(__file__))))
BUILD = os.environ.get("EBB_BUILD_DIR", os.path.join(ROOT, "build", "release"))
LANGUAGES = "c", "diff", "js", "python", "sh", "vala"
NAMES = ["README.md", *(os.path.relpath(path, ROOT)
                        for path in sorted(glob.glob(os.path.join(ROOT, "docs", "**", "*.md"), recursive=True)))]
# The pages whose Python is one program each.
GUIDE = [name for name in NAMES if name.startswith(os.path.join("docs", "porting")) or name.endswith("tutorial.md")]

# The beginning of a command: the path of a program, or a name with options.
_COMMAND = re.compile(r"(build/release/|examples/python/\w+\.py|scripts/|tests/[\w/]+\.py|/usr/bin/|export \w+="
                      r"|(mpirun|gcc|cmake(?= -)|gjs|valac|train_gpt|fsdp_gpt|train_bert|oslo_gpt2|nested_activations"
                      r"|ebb-(generate|finetune|train-gpt|fsdp-gpt)|step(?! \d+/)|attention|load|tiny-op) "
                      r"\S)")

# The code of a fenced block, and the text of a block right below it, which is what the code prints.
Block = collections.namedtuple("Block", "document line language code printed")


def read(name):
    with open(os.path.join(ROOT, name), encoding="utf-8") as file:
        return file.read()


def read_blocks(*languages):
    """All blocks, in order, or those in some languages."""
    for name in NAMES:
        text = read(name)
        for found in re.finditer(r"^```(\w*)\n(.*?)^```\n(?:(?=```text\n(.*?)^```$))?", text, re.MULTILINE | re.DOTALL):
            language, code, printed = found.groups()
            if not languages or language in languages:
                yield Block(name, text.count("\n", 0, found.start()) + 1, language, code, printed)


def is_command(text):
    return _COMMAND.match(text.strip()) is not None


def read_inline_commands(name):
    """The commands between backquotes, which may span lines."""
    text = re.sub(r"^```.*?^```$", "", read(name), flags=re.MULTILINE | re.DOTALL)
    spans = (" ".join(span.split()) for span in re.findall(r"`([^`]+)`", text))
    return [span for span in spans if is_command(span)]


def split_commands(block):
    """The commands of a shell block: continued lines are joined, comments are left out."""
    lines = re.sub(r"\\\n\s*", "", block.code).splitlines()
    return [line for line in (re.sub(r"(^|\s+)#.*", "", line).strip() for line in lines) if line]
