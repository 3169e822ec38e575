"""The pictures of a terminal have what was written, in its colours and columns."""

from xml.etree import ElementTree

from demo.terminals import CHARACTER, COLOURS, FOLDER, GREY, INK, PICTURES, draw

SVG = "{http://www.w3.org/2000/svg}"


def test_a_picture_has_the_text_of_a_terminal_in_its_colours() -> None:
    root = ElementTree.fromstring(
        draw("a & b", "\x1b[1;31mno <job>\x1b[0m & 1\n\n  \x1b[2mdim\x1b[0m\n")
    )
    lines = root.findall(f"{SVG}text")
    spans = [[(each.text, each.get("fill")) for each in line] for line in lines]
    assert spans[0] == [("no <job>", COLOURS[1]), (" & 1", INK)]
    assert spans[1] == [("  ", INK), ("dim", GREY)]
    assert lines[0][0].get("font-weight") == "bold"
    assert lines[0].get("textLength") == f"{12 * CHARACTER:g}"
    assert int(lines[1].get("y", 0)) > int(lines[0].get("y", 0))


def test_each_picture_shows_its_commands() -> None:
    for name, commands in PICTURES.items():
        text = "".join(ElementTree.parse(FOLDER / name).getroot().itertext())
        assert all(f"$ {command}" in text for command in commands)
