"""Cards: the Markdown of a file, and the values of its front matter; hostile files give a sentence or nothing."""

from __future__ import annotations

import os
import struct
import zlib
from collections.abc import Callable
from io import BytesIO
from pathlib import Path

import pytest
from PIL import Image, PngImagePlugin

from organs.ingest import card_images, image_encoder
from organs.ingest.card_images import checked_image, read_images
from organs.ingest.cards import CARD_MAX_BYTES, read_card, with_cards
from organs.ingest.image_encoder import _Refused, encoded
from organs.ingest.sources import find_sources
from organs.registry.card_text import image_name, image_names
from organs.registry.catalog.records import Edits
from organs.registry.entities.published import DESCRIPTION_MAX
from organs.registry.errors import BadImage, BadSource
from organs.registry.sandbox.process import Result
from organs.registry.upload_limits import CARD_IMAGE_MAX_BYTES, CARD_IMAGES_MAX
from tests.card_images import POINTS, image_bytes

FRONT = "---\nlicense: mit\nbase_model: someone/base\ntags:\n- code\n- 7\n---\n# A\n"


@pytest.mark.parametrize(
    ("text", "edits"),
    [
        ("# A\r\n\r\n|a|\r\n|-|", Edits(description="# A\n\n|a|\n|-|")),
        (FRONT, Edits(description="# A", license="mit", base="someone/base", tags=("code", "7"))),
        (FRONT.replace("mit", "no license of mine"), Edits(description="# A", base="someone/base", tags=("code", "7"))),
        ("---\nbase_model: [a/b]\n---\nx", Edits(description="x", base="a/b")),
        ("---\nbase_model: [a/b, c/d]\ntags: x\nlicense: [mit]\n---\nx", Edits(description="x")),
        ("---\n- a\n---\nx", Edits(description="x")),
        ("---\na: &a [*a]\n---\nx", Edits(description="x")),
        ("---\n" + "[" * 5000 + "\n---\nx", Edits(description="x")),
        ("---\nlicense: mit\n" + "x: 1\n" * 20_000 + "---\nx", Edits(description="x")),
        ("a\n---\nlicense: mit\n---\n", Edits(description="a\n---\nlicense: mit\n---")),
        ("---\nnever ends", Edits(description="---\nnever ends")),
    ],
)
def test_a_card_is_read_without_its_front_matter(tmp_path: Path, text: str, edits: Edits) -> None:
    path = tmp_path / "README.md"
    path.write_bytes(text.encode())
    assert read_card(path).edits == edits


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"\xff\xfe", "UTF-8"), (b"a\0b", "NUL"), (b"a" * (DESCRIPTION_MAX + 1), "at most 65,536"),
        (b"\n" * (CARD_MAX_BYTES + 1), "at most 65,536"), ("\u202e".encode(), "control characters"),
    ],
)  # fmt: skip
def test_a_file_that_is_no_card_is_refused(tmp_path: Path, data: bytes, reason: str) -> None:
    (tmp_path / "card.md").write_bytes(data)
    with pytest.raises(BadSource, match=reason):
        read_card(tmp_path / "card.md")
    with pytest.raises(BadSource, match="not a file"):
        read_card(tmp_path)


def test_only_the_one_readme_beside_the_sizes_of_one_model_is_its_card(tmp_path: Path) -> None:
    folders = {
        "sizes": ("m-F16.gguf", "m-Q8_0.gguf", "README.md"),
        "two models": ("m.gguf", "n.gguf", "README.md"),
        "two cards": ("m.gguf", "README.md", "readme.md"),
        "a form": ("m.gguf", "README.md"),
        "damaged": ("m.gguf", "README.md"),
        "linked": ("m.gguf",),
        "below": ("m.gguf",),
    }
    for folder, names in folders.items():
        (tmp_path / folder).mkdir()
        for name in names:
            (tmp_path / folder / name).write_text("# A card")
    (tmp_path / "a form" / "README.md").write_text("[More Information Needed]\n" * 6)
    (tmp_path / "damaged" / "README.md").write_bytes(b"\xff")
    (tmp_path / "linked" / "README.md").symlink_to(tmp_path / "sizes" / "README.md")
    (tmp_path / "README.md").write_text("# Of the whole folder")
    sources = with_cards(find_sources([str(tmp_path)]), [tmp_path])
    cards = {source.paths[0].relative_to(tmp_path).as_posix() for source in sources if source.card is not None}
    assert cards == {"sizes/m-F16.gguf", "sizes/m-Q8_0.gguf"}
    named = [str(tmp_path / "sizes" / "m-F16.gguf")]
    assert [source.card for source in with_cards(find_sources(named), [])] == [None]


@pytest.mark.parametrize(
    ("address", "name"),
    [
        ("images/plot.png", "images/plot.png"), ("./plot.png", "plot.png"), ("my%20plot.png", "my plot.png"),
        ("plot.png#dark", "plot.png"), ("%C3%BC.png", "ü.png"), ("a%2Fb.png", "a/b.png"), ("%252e%252e/x", "%2e%2e/x"),
        ("../x.png", None), ("a/../../x.png", None), ("/etc/x.png", None), ("%2e%2e/x.png", None), ("%2Fx.png", None),
        ("a//x.png", None), ("..%5Cx.png", None), ("C:x.png", None), ("x%00.png", None), ("x%0A.png", None),
        ("%FF.png", None), ("x" * 300, None), ("", None), ("#dark", None), ("https://example.org/x.png", None),
    ],
)  # fmt: skip
def test_an_image_is_named_by_a_path_below_the_folder_of_the_card(address: str, name: str | None) -> None:
    assert image_name(address) == name


def test_the_images_of_a_card_are_those_that_its_markdown_shows() -> None:
    text = (
        "![a *b*](a.png) [![c](<my c.png>)](https://d) `![e](e.png)` ![](../f.png) ![](https://g/g.png)\n\n    ![](h)"
    )
    assert image_names(f"{text}\n\n|![i](./i.png)|\n|-|\n\n![a](a.png) <img src='j.png'>") == (
        ("a.png", "my c.png", "i.png")
    )
    marks = "![](plot(1).png) ![](a+b.png) ![](a,b.png) ![](<c)d.png>) ![](@e=~f!.png) ![](g).png) ![](h;i.png)"
    assert image_names(marks) == ("plot(1).png", "a+b.png", "a,b.png", "c)d.png", "@e=~f!.png", "g")
    assert image_names("![a](a.png)\n" * 2001) == (), "it is shown as typed"


def test_only_files_below_the_folder_of_the_card_are_read(tmp_path: Path) -> None:
    folder = tmp_path / "card"
    (folder / "images").mkdir(parents=True)
    (tmp_path / "secret.png").write_bytes(POINTS)
    for name in ("a.png", "images/b.png"):
        (folder / name).write_bytes(POINTS)
    (folder / "link.png").symlink_to(tmp_path / "secret.png")
    (folder / "linked").symlink_to(tmp_path)
    os.mkfifo(folder / "pipe.png")
    with (folder / "large.png").open("wb") as file:
        file.truncate(CARD_IMAGE_MAX_BYTES + 1)
    names = ["a.png", "images/b.png", "link.png", "linked/secret.png", "pipe.png", "images", "none.png", "large.png"]
    found, lacking = read_images(folder, "".join(f"![]({name})" for name in [*names, "../secret.png"]))
    assert found == dict.fromkeys(names[:2], POINTS)
    assert [reason.partition(":")[0] for reason in lacking[:5]] == names[2:7]
    assert lacking[5] == "large.png has more than 4.2 MB"
    found, lacking = read_images(folder, "".join(f"![]({number}.png)" for number in range(CARD_IMAGES_MAX + 1)))
    assert (lacking[0], len(lacking)) == ("the card shows 17 images; the first 16 are taken", 17)


def test_the_images_of_a_card_have_a_size_together(tmp_path: Path) -> None:
    for number in range(5):
        with (tmp_path / f"{number}.png").open("wb") as file:
            file.truncate(CARD_IMAGE_MAX_BYTES)
    found, lacking = read_images(tmp_path, "".join(f"![]({number}.png)" for number in range(5)))
    assert (len(found), lacking) == (4, ("4.png is too much: the images of a card have at most 16.8 MB together",))


def png_of_size(width: int, height: int) -> bytes:
    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    rows = zlib.compress(bytes(1_000_000))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", rows) + chunk(b"IEND", b"")


def gif_of_frames(frames: int) -> bytes:
    frame = b",\0\0\0\0\1\0\1\0\0\2\2D\1\0"
    return b"GIF89a\1\0\1\0\0\0\0" + frame * frames + b";"


def webp_of_canvas(side: int) -> bytes:
    body = b"WEBPVP8X" + struct.pack("<I", 10) + bytes(4) + (side - 1).to_bytes(3, "little") * 2
    return b"RIFF" + struct.pack("<I", len(body)) + body


def exif(**tags: object) -> Image.Exif:
    written = Image.Exif()
    written.update({0x0112: 6, 0x010E: "a secret place", **tags})
    return written


def noise(side: int) -> bytes:
    out = BytesIO()
    Image.frombytes("RGBA", (side, side), os.urandom(4 * side * side)).save(out, "PNG", compress_level=1)
    return out.getvalue()


def with_text() -> bytes:
    texts = PngImagePlugin.PngInfo()
    texts.add_text("Comment", "a secret place")
    return image_bytes(pnginfo=texts, icc_profile=b"a secret place" * 9)


def animation() -> bytes:
    frames = [Image.new("RGBA", (3, 2), (number, 0, 0, 9)) for number in range(5)]
    return image_bytes("WEBP", mode="RGBA", save_all=True, append_images=frames)


HOSTILE: dict[str, tuple[Callable[[], bytes], str | tuple[str, str, int, int]]] = {
    "a bomb": (lambda: png_of_size(30_000, 30_000), "side"),
    "a long bomb": (lambda: png_of_size(2**31 - 1, 1), "side"),
    "a bomb whose rows lack": (lambda: png_of_size(4096, 4096), "damaged"),
    "a large canvas": (lambda: webp_of_canvas(16_384), "side"),
    "a canvas without frames": (lambda: webp_of_canvas(16), "damaged"),
    "cut off": (lambda: noise(64)[:-2000], "damaged"),
    "nothing": (lambda: b"", "kind"),
    "SVG": (lambda: b"<svg xmlns='http://www.w3.org/2000/svg'><script>alert(1)</script></svg>", "kind"),
    "BMP": (lambda: image_bytes("BMP"), "kind"),
    "TIFF": (lambda: image_bytes("TIFF"), "kind"),
    "noise": (lambda: noise(64), "large"),
    "HTML behind it": (lambda: POINTS + b"<script>a secret place</script>", ("png", "RGB", 3, 2)),
    "texts and a profile": (with_text, ("png", "RGB", 3, 2)),
    "ten thousand frames": (lambda: gif_of_frames(10_000), ("png", "L", 1, 1)),
    "an animation": (animation, ("png", "RGBA", 3, 2)),
    "a script in a JPEG": (lambda: image_bytes("JPEG", comment=b"/*a secret place*/"), ("jpeg", "RGB", 3, 2)),
    "CMYK": (lambda: image_bytes("JPEG", mode="CMYK"), ("jpeg", "RGB", 3, 2)),
    "on its side": (lambda: image_bytes("JPEG", exif=exif()), ("jpeg", "RGB", 2, 3)),
    "a PNG on its side": (lambda: image_bytes(exif=exif()), ("png", "RGB", 2, 3)),
    "16 bits": (lambda: image_bytes(mode="I;16", colour=40_000), ("png", "L", 3, 2)),
    "a palette": (lambda: image_bytes(mode="P"), ("png", "P", 3, 2)),
    "transparent": (lambda: image_bytes("WEBP", mode="RGBA", colour=(0, 0, 0, 9)), ("png", "RGBA", 3, 2)),
    "one bit": (lambda: image_bytes(mode="1"), ("png", "L", 3, 2)),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_of_an_image_only_the_pixels_are_kept(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    make, expected = HOSTILE[case]
    if expected == "large":
        monkeypatch.setattr(image_encoder, "CARD_IMAGE_MAX_BYTES", 9_000)
    if isinstance(expected, str):
        with pytest.raises(_Refused, match=expected):
            encoded(make())
        return
    about, data = encoded(make())
    with Image.open(BytesIO(data)) as written:
        assert (about["format"], written.mode, written.width, written.height) == expected
        assert (about["width"], about["height"]) == written.size
        assert written.info.keys() <= {"jfif", "jfif_version", "jfif_unit", "jfif_density"}
        assert getattr(written, "n_frames", 1) == 1
        if case == "16 bits":
            assert written.getpixel((0, 0)) == 40_000 // 257
    assert b"secret" not in data


def test_images_are_written_again_by_a_confined_program() -> None:
    image = checked_image("a.png", POINTS)
    assert (image.format, image.width, image.height) == ("png", 3, 2)
    with pytest.raises(BadImage, match=r"^bomb\.png has more than 4,096 pixels on a side$"):
        checked_image("bomb.png", png_of_size(30_000, 30_000))
    with pytest.raises(BadImage, match=r"^large\.png has more than 4\.2 MB$"):
        checked_image("large.png", bytes(CARD_IMAGE_MAX_BYTES + 1))


@pytest.mark.parametrize(
    "output",
    [
        b"", b"{}\n", b"not JSON\n", b'{"refused": "other"}\n', b'{"format": "png", "width": 1, "height": 1}\n<svg>',
        b'{"format": "svg", "width": 1, "height": 1}\n<svg>', b'{"format": "png", "width": 5000, "height": 1}\n\x89PNG',
        b'{"format": "jpeg", "width": 1, "height": 1}\n' + POINTS,
    ],
)  # fmt: skip
def test_no_answer_of_the_program_is_trusted(output: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    for ending in (Result(0, None, None, output, "", 0.1), Result(None, None, "it used up its time", output, "", 0.1)):
        monkeypatch.setattr(card_images, "run_python", lambda *_, ending=ending: ending)
        with pytest.raises(BadImage, match=r"^a\.png "):
            checked_image("a.png", POINTS)
