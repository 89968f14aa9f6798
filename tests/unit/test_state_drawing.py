"""Drawings of state diagrams: every state is a box, every transition an arrow with its events."""

import xml.etree.ElementTree as ElementTree

from libs.docs.life_pages import job_life
from libs.docs.state_drawing import arrows_of, columns_of, drawn

SVG = "{http://www.w3.org/2000/svg}"
DIAGRAM = """stateDiagram-v2
    [*] --> held: lock.granted
    held --> held: lock.renewed
    held --> waiting: lock.lost
    held --> over: lock.freed
    over --> waiting: a <b>
    waiting --> held
    waiting --> over
    over --> [*]
"""


def test_states_stand_by_their_distance_from_the_beginning() -> None:
    assert columns_of(arrows_of(DIAGRAM)) == [["[*]"], ["held"], ["waiting", "over"]]


def test_a_state_that_is_never_reached_stands_last() -> None:
    arrows = arrows_of("[*] --> a\nb --> a\n")
    assert columns_of(arrows) == [["[*]"], ["a"], ["b"]]


def test_a_diagram_without_a_beginning_starts_with_its_first_state() -> None:
    assert columns_of(arrows_of("a --> b\n")) == [["a"], ["b"]]


def test_every_state_and_every_transition_is_drawn() -> None:
    drawing = ElementTree.fromstring(drawn(DIAGRAM))
    names = [text.text for text in drawing.iter(f"{SVG}text")]
    told = [title.text for title in drawing.iter(f"{SVG}title")]
    assert names == ["held", "waiting", "over"]
    assert told == [
        "(none) to held: lock.granted",
        "held to held: lock.renewed",
        "held to waiting: lock.lost",
        "held to over: lock.freed",
        "over to waiting: a <b>",
        "waiting to held",
        "waiting to over",
    ]


def test_the_life_of_a_job_is_drawn_whole() -> None:
    diagram = job_life().split("```mermaid\n")[1].split("```")[0]
    drawing = ElementTree.fromstring(drawn(diagram))
    states = {name for arrow in arrows_of(diagram) for name in arrow[:2]} - {"[*]"}
    assert {text.text for text in drawing.iter(f"{SVG}text")} == states
