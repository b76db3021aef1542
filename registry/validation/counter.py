"""The program in the confined child: load a model with llama.cpp, create a context, and tell what memory they took.

It reads a `CountOrder` and prints one `CountLine` of JSON. llama.cpp writes the size of each buffer that it allocates
or maps into its log: these lines are the count.
"""

from __future__ import annotations

import re

from organs.registry.entities.base import Entity, Items
from organs.registry.entities.memory import MemoryBuffer
from organs.registry.validation.child import order_and_answers
from organs.registry.validation.decoder import (
    ModelRefused,
    UnknownInterface,
    context_members,
    listening,
    opened,
)

BUFFERS_MAX = 4096
_BUFFER = re.compile(r"^\w+: +(?P<name>\S+) +(?P<content>\S.*?) +buffer size *= *(?P<size>[0-9]+\.[0-9]+) MiB")
_FLASH = re.compile(r"\bflash_attn *= *(?P<value>\w+)")
_CACHE = re.compile(r"\bK \((?P<keys>\w+)\): .*\bV \((?P<values>\w+)\): ")
FLASH_ATTENTION = {"auto": (-1, "auto"), "on": (1, "enabled"), "off": (0, "disabled")}
"""The numbers of llama.cpp, and its words."""
_COMPUTE = "compute"


class CountOrder(Entity):
    """What the program is to do."""

    model: str
    """The path of the model; of a split set, of its first file."""
    tokens: int
    cache_type: int
    """The number of the tensor type."""
    cache_name: str
    micro_batch: int
    flash_attention: str


class CountLine(Entity, omit_defaults=True):
    """What the program has found. The parent ignores lines that are none of these."""

    loaded: bool = False
    buffers: Items[MemoryBuffer] = ()
    refused: str | None = None
    missing: str | None = None
    """Why llama.cpp is not there."""
    unknown: str | None = None
    """What this version of llama.cpp does not have."""


def main() -> None:
    """Read one order, do it, and end."""
    order, tell = order_and_answers(CountOrder)
    lines: list[str] = []
    try:
        with listening(lines.append), opened(order.model) as model:
            tell(CountLine(loaded=True))
            parameters = model.library.llama_context_default_params()
            members = context_members(bytes(parameters))
            parameters.n_ctx, parameters.n_seq_max = order.tokens, 1
            parameters.n_ubatch = order.micro_batch
            parameters.n_batch = max(parameters.n_batch, order.micro_batch)
            parameters.put(members.flash_attention, "<i", FLASH_ATTENTION[order.flash_attention][0])
            parameters.put(members.cache_types, "<ii", order.cache_type, order.cache_type)
            parameters.put(members.full_windows, "<?", False)  # as the programs of llama.cpp do, unlike its library
            context = model.library.llama_init_from_model(model.pointer, parameters)
            if not context:
                raise ModelRefused("llama.cpp cannot create a context for the model")
            if model.library.llama_n_ctx(context) < order.tokens:
                raise UnknownInterface("llama.cpp does not use the parameters of a context")
            check_effect(lines, order)
            tell(CountLine(buffers=buffers_of(lines)))
    except ImportError as error:
        tell(CountLine(missing=str(error)))
    except UnknownInterface as error:
        tell(CountLine(unknown=str(error)))
    except ModelRefused as error:
        tell(CountLine(refused=str(error)))


def buffers_of(lines: list[str]) -> tuple[MemoryBuffer, ...]:
    """Return the buffers in lines of llama.cpp's log. A buffer for computing that is made anew replaces the last one.

    Raises UnknownInterface if there are none.
    """
    found: list[MemoryBuffer] = []
    for match in filter(None, map(_BUFFER.match, lines)):
        size = round(float(match["size"]) * 1024**2)
        buffer = MemoryBuffer(name=match["name"], content=match["content"], size_bytes=size)
        if buffer.content == _COMPUTE:
            found = [other for other in found if (other.name, other.content) != (buffer.name, buffer.content)]
        found.append(buffer)
    if not any(buffer.content == "model" for buffer in found) or len(found) > BUFFERS_MAX:
        raise UnknownInterface("this version of llama.cpp does not tell the sizes of its buffers")
    return tuple(found)


def check_effect(lines: list[str], order: CountOrder) -> None:
    """Raise UnknownInterface if llama.cpp's log says that a context has other parameters than ordered."""
    text = "\n".join(lines)
    flash, wanted = _FLASH.search(text), FLASH_ATTENTION[order.flash_attention][1]
    is_other = flash is None or wanted not in ("auto", flash["value"])  # some types of the cache turn it on
    for cache in _CACHE.finditer(text):  # a model without attention has none
        is_other = is_other or {cache["keys"], cache["values"]} != {order.cache_name}
    if is_other:
        raise UnknownInterface("llama.cpp does not use the parameters of a context")


if __name__ == "__main__":
    main()
