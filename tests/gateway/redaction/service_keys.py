"""Keys in the formats that services document, for planting. `{A36}` is 36 random characters of the class A."""

from __future__ import annotations

import random
import re
import string

CLASSES = {
    "A": string.ascii_letters + string.digits,
    "a": string.ascii_lowercase + string.digits,
    "U": string.ascii_uppercase + string.digits,
    "L": string.ascii_uppercase,
    "B": string.ascii_uppercase + "234567",
    "h": "0123456789abcdef",
    "d": string.digits,
    "w": string.ascii_letters + string.digits + "_-",
}
FORMATS = {
    "openai": "sk-{A20}T3BlbkFJ{A20}",
    "openai-project": "sk-proj-{w74}T3BlbkFJ{w74}",
    "anthropic": "sk-ant-api03-{w93}AA",
    "github": "ghp_{A36}",
    "github-oauth": "gho_{A36}",
    "github-app": "ghs_{A36}",
    "github-fine-grained": "github_pat_{A22}_{A59}",
    "gitlab": "glpat-{w20}",
    "slack-bot": "xoxb-{d12}-{d12}-{A24}",
    "slack-user": "xoxp-{d12}-{d12}-{d12}-{h32}",
    "slack-app": "xapp-1-A{U10}-{d13}-{h64}",
    "slack-webhook": "https://hooks.slack.com/services/T{U8}/B{U8}/{A24}",
    "stripe": "sk_live_{A24}",
    "stripe-restricted": "rk_live_{A24}",
    "aws-id": "AKIA{B16}",
    "google": "AIza{w35}",
    "npm": "npm_{A36}",
    "pypi": "pypi-AgEIcHlwaS5vcmc{w70}",
    "sendgrid": "SG.{w22}.{w43}",
    "mailchimp": "{h32}-us12",
    "mailgun": "key-{h32}",
    "digitalocean": "dop_v1_{h64}",
    "shopify": "shpat_{h32}",
    "square": "sq0csp-{w43}",
    "telegram": "{d10}:AA{w33}",
    "hugging-face": "hf_{A34}",
    "databricks": "dapi{h32}",
    "new-relic": "NRAK-{U27}",
    "grafana": "glsa_{A32}_{h8}",
    "vault": "hvs.{w94}",
    "doppler": "dp.pt.{A43}",
    "linear": "lin_api_{A40}",
    "notion": "ntn_{d11}{A35}",
    "atlassian": "ATATT3xFfGF0{w171}={U8}",
    "postman": "PMAK-{h24}-{h34}",
    "supabase": "sbp_{h40}",
    "groq": "gsk_{A52}",
    "replicate": "r8_{A37}",
    "perplexity": "pplx-{A48}",
    "xai": "xai-{A80}",
    "figma": "figd_{w40}",
    "rubygems": "rubygems_{h48}",
    "docker": "dckr_pat_{w27}",
    "airtable": "pat{A14}.{h64}",
    "langsmith": "lsv2_pt_{h32}_{h10}",
    "age": "AGE-SECRET-KEY-1{Q58}",
    "twilio": "SK{h32}",
    "discord-webhook": "https://discord.com/api/webhooks/{d18}/{w68}",
    "sentry": "sntryu_{h64}",
    "planetscale": "pscale_tkn_{w43}",
}
CLASSES["Q"] = "QPZRY9X8GF2TVDW0S3JN54KHCE6MUA7L"
_FIELD = re.compile(r"\{(\w)(\d+)\}")


def service_key(service: str, rng: random.Random) -> str:
    """A key of one of the services in `FORMATS`."""
    return _FIELD.sub(lambda field: "".join(rng.choices(CLASSES[field[1]], k=int(field[2]))), FORMATS[service])
