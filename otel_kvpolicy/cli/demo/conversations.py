"""The demo's built-in workload: an agent with tools, chats, questions about a manual, and one-offs.

The texts are assembled from small parts with a fixed seed, so they are the same on every run. They
repeat what real traffic repeats: the system prompt, the tools, the retrieved text and the earlier
turns.
"""

from __future__ import annotations

import json
import random
from typing import Any, Final

from .workload import Conversation

_SEED: Final = 7
_AGENTS: Final = 24
_CHATS: Final = 36
_QUESTIONS: Final = 60
_ONE_OFFS: Final = 360


def built_in() -> list[Conversation]:
    """Return the conversations in a fixed random order."""
    draw = random.Random(_SEED)  # noqa: S311 - not used for secrets
    conversations = [
        *(_agent(draw, number) for number in range(_AGENTS)),
        *(_chat(draw, number) for number in range(_CHATS)),
        *(_question(draw, number) for number in range(_QUESTIONS)),
        *(_one_off(draw, number) for number in range(_ONE_OFFS)),
    ]
    draw.shuffle(conversations)
    return conversations


def _message(role: str, content: str) -> dict[str, Any]:
    return {"role": role, "content": content}


# --- a port's booking agent, with a handbook as its system prompt, and tools ----------------------
_RULES: Final = (
    (
        "Ask for the ship's call sign before anything else, and repeat it letter by letter in the "
        "spelling alphabet."
    ),
    (
        "A berth may be promised only after find_berth has returned it; a berth seen in an "
        "earlier call may be taken by now."
    ),
    (
        "Tankers lie on the north mole only. If the north mole is full, offer the roadstead and "
        "say how long the wait is likely to be."
    ),
    (
        "Ships of more than 9.5 metres draught enter within two hours of high water. Read the "
        "tide table for the day; never estimate it."
    ),
    (
        "A pilot is compulsory above 90 metres of length. Exempt masters name the number of their "
        "exemption, which you look up."
    ),
    (
        "Tugs are ordered per manoeuvre. Two are the rule from 150 metres, three from 220 metres "
        "or above six Beaufort."
    ),
    (
        "Dangerous goods need the list of classes and quantities 24 hours ahead. Class 1 and "
        "class 7 go to the duty officer at once."
    ),
    (
        "Fees depend on gross tonnage and on the hours alongside; quote them only from "
        "quote_fees, in euros, without pilotage, and say so."
    ),
    (
        "Fresh water comes by barge on weekdays from seven to four. Outside these hours ships "
        "take water from the quay at berths 3 to 8."
    ),
    (
        "Waste is collected after a notice of at least six hours; oily residues need a separate "
        "notice and a separate barge."
    ),
    (
        "Shore power is at berths 11, 12 and 14. It is free of charge for ships that stay longer "
        "than a day."
    ),
    (
        "Crew changes are told to the border police with names, ranks and nationalities; you pass "
        "the list on and never keep it."
    ),
    (
        "If a master sounds distressed, stop the booking, give the number of the rescue centre "
        "and hand over to the duty officer."
    ),
    (
        "Never discuss one ship's cargo, agent or arrears with another. If asked, say that you "
        "cannot speak about other ships."
    ),
    (
        "When the wind exceeds eight Beaufort the lock is closed. Bookings are still taken, but "
        "say that the time depends on the lock."
    ),
    (
        "Fishing boats under 24 metres need no booking: direct them to the inner basin and wish "
        "them a good catch."
    ),
    (
        "Repairs alongside that need open flame require a permit of the fire brigade, valid for "
        "one shift."
    ),
    (
        "Confirm every change in one short summary: ship, berth, time of arrival, services "
        "ordered, and who is to be called when."
    ),
    "Times are local times. If the master gives universal time, convert it and name both.",
    (
        "One tool call at a time. If a tool fails, try once more, then say what you could not "
        "find out and who can."
    ),
)
_CARGOES: Final = ("container", "bulk", "ferry", "general cargo")
_HANDBOOK: Final = (
    "You are the booking agent of a seaport. You talk to masters and ship agents by text. Be "
    "brief, exact and courteous; many of them "
    "write in a language that is not their own. You follow the handbook below to the letter.\n\n"
    + "\n".join(
        f"{chapter}.{number} {rule}"
        for chapter, rules in enumerate((_RULES[:7], _RULES[7:14], _RULES[14:]), 1)
        for number, rule in enumerate(rules, 1)
    )
    + "\n\nBerths: "
    + "; ".join(
        f"berth {number}, {80 + 14 * number} metres, depth {6 + number % 7}.{number % 10} "
        f"metres, {_CARGOES[number % 4]}"
        for number in range(1, 25)
    )
    + "."
)


def _tool(name: str, description: str, **properties: str) -> dict[str, Any]:
    parameters = {
        "type": "object",
        "properties": {
            field: {"type": "string", "description": text} for field, text in properties.items()
        },
        "required": list(properties),
    }
    return {
        "type": "function",
        "function": {"name": name, "description": description, "parameters": parameters},
    }


_TOOLS: Final = [
    _tool(
        "find_ship",
        "Looks a ship up in the register.",
        call_sign="Call sign, seven characters at most",
    ),
    _tool(
        "find_berth",
        "Free berths for a ship.",
        call_sign="Call sign",
        arrival="Local time of arrival, ISO 8601",
        hours="Hours alongside",
    ),
    _tool("tide_table", "High and low water of a day.", day="Local day, ISO 8601"),
    _tool(
        "book_berth",
        "Books a berth.",
        call_sign="Call sign",
        berth="Number of the berth",
        arrival="Local time, ISO 8601",
    ),
    _tool(
        "order_pilot",
        "Orders a pilot to the station.",
        call_sign="Call sign",
        time="Local time, ISO 8601",
    ),
    _tool(
        "order_tugs",
        "Orders tugs for one manoeuvre.",
        call_sign="Call sign",
        count="How many",
        time="Local time, ISO 8601",
    ),
    _tool("quote_fees", "Harbour fees.", call_sign="Call sign", hours="Hours alongside"),
    _tool(
        "call_officer", "Hands the conversation to the duty officer.", reason="Why, in one sentence"
    ),
]
_SHIPS: Final = (
    "Aldebaran",
    "Brigantia",
    "Cormorant",
    "Dolores",
    "Eider",
    "Fulmar",
    "Galene",
    "Halcyon",
    "Ino",
    "Juno",
    "Kestrel",
    "Larus",
)


def _agent(draw: random.Random, number: int) -> Conversation:
    ship = f"{_SHIPS[number % len(_SHIPS)]} {number + 1}"
    sign = "".join(draw.choices("ABCDEFGHJKLMNPRSTUVWXYZ", k=4)) + str(draw.randint(2, 9))
    day = f"2031-0{draw.randint(3, 9)}-{draw.randint(10, 28)}"
    messages = [
        _message("system", _HANDBOOK),
        _message(
            "user",
            (
                f"Good day, motor vessel {ship}, {sign}. We expect to arrive on {day} and need a "
                f"berth for {draw.randint(8, 60)} hours."
            ),
        ),
    ]
    plan = [
        "find_ship",
        "tide_table",
        "find_berth",
        "book_berth",
        *draw.sample(["order_pilot", "order_tugs", "quote_fees"], 2),
    ]
    for place, tool in enumerate(plan[: draw.randint(3, 6)]):
        call_id = f"call-{number}-{place}"
        arguments = json.dumps({"call_sign": sign, "day": day})
        call = {
            "id": call_id,
            "type": "function",
            "function": {"name": tool, "arguments": arguments},
        }
        messages.append({"role": "assistant", "content": None, "tool_calls": [call]})
        messages.append(
            {"role": "tool", "tool_call_id": call_id, "content": _tool_result(draw, tool, ship)}
        )
    messages.append(
        _message(
            "assistant",
            (
                f"{ship}, your berth is reserved. Please call the harbour on channel 12 two hours "
                "before arrival."
            ),
        )
    )
    if draw.random() < 0.5:
        messages += [
            _message("user", "Thank you. Can we also take fresh water?"),
            _message("assistant", "Yes, by barge, on weekdays from seven to four."),
        ]
    return Conversation(messages, _TOOLS)


def _tool_result(draw: random.Random, tool: str, ship: str) -> str:
    rows = [
        {
            "item": tool,
            "ship": ship,
            "at": f"{draw.randint(0, 23):02}:{draw.randint(0, 59):02}",
            "value": draw.randint(100, 99999),
            "open": draw.random() < 0.5,
        }
        for _ in range(draw.randint(3, 14))
    ]
    return json.dumps({"ok": True, "rows": rows})


# --- chats ----------------------------------------------------------------------------------------
_TOPICS: Final = {
    "a vegetable patch": (
        "the soil is heavy clay",
        "slugs eat the lettuce",
        "the beans flower but bear nothing",
        "we are away in August",
    ),
    "learning the cello": (
        "my bow trembles",
        "I read the bass clef slowly",
        "the neighbours complain",
        "I want to play in an ensemble",
    ),
    "an old bicycle": (
        "the chain skips",
        "the brakes squeal in the rain",
        "one spoke is broken",
        "I would like lights without batteries",
    ),
    "a night train journey": (
        "we change twice",
        "my father uses a wheelchair",
        "we carry a dog",
        "the last leg is by ferry",
    ),
    "baking rye bread": (
        "the crumb is wet",
        "the crust splits",
        "my sourdough smells of acetone",
        "I bake in a gas oven",
    ),
    "a village theatre": (
        "we have nine players and fourteen parts",
        "the hall echoes",
        "there is no money for costumes",
        "two actors fell out",
    ),
}
_ADVICE: Final = (
    (
        "Start with the smallest change that could work and watch it for a week before you change "
        "anything else."
    ),
    (
        "That is common, and it is rarely a sign of something worse; what matters is whether it "
        "gets better or stays the same."
    ),
    (
        "There are two ways: the quick one hides the cause, the slow one removes it, and you can "
        "begin with the first today."
    ),
    (
        "Write down what you did and when, since memory favours the last attempt and forgets the "
        "first three."
    ),
    (
        "Ask somebody who has done it for years to look at it once; ten minutes of looking saves "
        "a month of guessing."
    ),
    (
        "If money is short, borrow before you buy: most of what is needed lies unused in a cellar "
        "nearby."
    ),
)


def _chat(draw: random.Random, number: int) -> Conversation:
    topic, worries = list(_TOPICS.items())[number % len(_TOPICS)]
    messages = [
        _message(
            "system",
            (
                "You are a friendly adviser. Answer in plain words, in a few sentences, and ask "
                "when something is unclear."
            ),
        )
    ]
    messages.append(
        _message(
            "user",
            (
                f"Hello! I need some advice about {topic}. This is my attempt number "
                f"{number + 2}, and {worries[0]}."
            ),
        )
    )
    for _ in range(draw.randint(2, 9)):
        messages.append(_message("assistant", " ".join(draw.sample(_ADVICE, draw.randint(2, 5)))))
        messages.append(
            _message(
                "user",
                (
                    f"I see. Another thing: {draw.choice(worries)}. What about that, in week "
                    f"{draw.randint(1, 52)}?"
                ),
            )
        )
    messages.append(_message("assistant", draw.choice(_ADVICE)))
    return Conversation(messages, stream=number % 2 == 0)


# --- questions about one manual -------------------------------------------------------------------
_PARTS: Final = (
    "boiler",
    "pump",
    "grinder",
    "group head",
    "drip tray",
    "steam wand",
    "descaler",
    "water tank",
    "pressure gauge",
    "gasket",
    "display",
    "filter",
)
_MANUAL: Final = "\n".join(
    f"Section {number}. The {part}. Clean the {part} every {2 + number} weeks with lukewarm "
    f"water and no soap. If the {part} is "
    f"worn, order part {4100 + 17 * number}; it is exchanged with a {8 + number % 3} "
    "millimetre key after the machine has cooled for "
    f"{20 + 5 * number} minutes. Error E{number:02} means that the {part} reports nothing: "
    "switch off, wait, switch on; if it returns, "
    f"call the workshop. Normal readings lie between {number + 1} and {number * 2 + 3}; "
    "beyond that, stop using the machine and note "
    "the reading for the technician."
    for number, part in enumerate((*_PARTS, *(f"second {part}" for part in _PARTS)), 1)
)


def _question(draw: random.Random, number: int) -> Conversation:
    part = draw.choice(_PARTS)
    asked = draw.choice(
        (
            f"How often do I clean the {part}?",
            f"What does it mean if the {part} reads {draw.randint(1, 40)}?",
            f"Which key do I need for the {part}, and how long must it cool?",
            f"My machine shows an error about the {part}. What now? It happened {number} times.",
        )
    )
    system = (
        "Answer from the manual of the coffee machine only, and name the section.\n\n"
        f"<manual>\n{_MANUAL}\n</manual>"
    )
    return Conversation(
        [
            _message("system", system),
            _message("user", asked),
            _message("assistant", "See the section named in the manual."),
        ]
    )


# --- one-offs -------------------------------------------------------------------------------------
_TASKS: Final = (
    "Summarise this log in two sentences.",
    "Which of these readings is odd, and why?",
    "Turn these notes into a polite message to a customer.",
    "Translate into French and keep the numbers.",
    "Give this report a title of at most six words.",
)
_EVENTS: Final = (
    "valve opened",
    "door left ajar",
    "sensor silent",
    "parcel weighed",
    "gate closed",
    "belt stopped",
    "label reprinted",
    "temperature noted",
)
_PLACES: Final = (
    "hall A",
    "hall B",
    "cold store",
    "ramp 4",
    "sorting line",
    "yard",
    "pack station 7",
    "office",
)


def _one_off(draw: random.Random, number: int) -> Conversation:
    lines = (
        f"{draw.randint(0, 23):02}:{draw.randint(0, 59):02} {draw.choice(_PLACES)}: "
        f"{draw.choice(_EVENTS)}, "
        f"value {draw.randint(10, 9999)}, by shift {draw.randint(1, 40)}"
        for _ in range(draw.randint(20, 110))
    )
    text = "\n".join(lines)
    return Conversation(
        [
            _message("user", f"Report {number + 1}. {draw.choice(_TASKS)}\n\n{text}"),
            _message("assistant", "Done."),
        ],
        stream=number % 5 == 0,
    )
