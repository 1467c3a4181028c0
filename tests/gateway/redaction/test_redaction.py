"""No personal data and no secrets of the known kinds pass, and harmless texts do."""

from __future__ import annotations

import json
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st
from slipstream_core.manifest.capture import Capture, Redaction
from slipstream_gateway.capture.redaction.redactor import Redactor

ALL = Capture()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Pay with 4111 1111 1111 1111 please", "Pay with [card] please"),
        ("card 4111-1111-1111-1111, exp 12/30", "card [card], exp 12/30"),
        ("5500005555555559", "[card]"),
        ("card 4111111111111111 2027 then", "card [card] 2027 then"),
        ("IBAN DE89 3704 0044 0532 0130 00.", "IBAN [iban]."),
        ("GB82WEST12345698765432", "[iban]"),
        ("mail to jane.doe+x@mail.example.co.uk now", "mail to [email] now"),
        ("call +49 (0)30 901820-12 today", "call [phone] today"),
        ("from 192.168.10.254 to ::", "from [ip] to ::"),
        ("2001:db8:85a3:0:0:8a2e:370:7334", "[ip]"),
        ("key sk-proj-Ab12Cd34Ef56Gh78Ij90", "key [secret]"),
        ("ghp_abcdefghijklmnopqrstuvwxyz0123456789", "[secret]"),
        ("AKIAIOSFODNN7EXAMPLE", "[secret]"),
        ("Authorization: Bearer a1B2c3.D4e5F6-g7H8", "Authorization: [secret]"),
        ('{"password": "hunter2hunter2"}', '{"password": "[secret]"}'),
        (
            '{"password_old": "x", "db_password": ["hunter22", 5]}',
            '{"password_old": "[secret]", "db_password": "[secret]"}',
        ),
        ('{"api_key": 12345678, "note": "mail\\nada@x.pl"}', '{"api_key": "[secret]", "note": "mail\\n[email]"}'),
        ("Order 2231\n4111 1111 1111 1111 thanks", "Order 2231\n[card] thanks"),
        ("AB12 customer reference DE89 3704 0044 0532 0130 00", "AB12 customer reference [iban]"),
        ("BE68 5390 0754 7034\nGB82 WEST 1234 5698 7654 32", "[iban]\n[iban]"),
        ("4111\u22121111\u22121111\u22121111", "[card]"),
        (r"Solve \frac{1}{2} \nabla and mail ada@x.pl", r"Solve \frac{1}{2} \nabla and mail [email]"),
        (r"log \ud83d\ude00 mail ada@x.pl", r"log \ud83d\ude00 mail [email]"),
        ("http://10.1.2.3:8080/x", "http://[ip]:8080/x"),
        ("eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.c2lnbmF0dXJl", "[secret]"),
        ("-----BEGIN RSA PRIVATE KEY-----\nMIIE\n-----END RSA PRIVATE KEY-----", "[secret]"),
        ("-----BEGIN PRIVATE KEY-----\nMIIE and no end", "[secret]"),
        ("-----BEGIN PGP PRIVATE KEY BLOCK-----\nlQ\n-----END PGP PRIVATE KEY BLOCK-----", "[secret]"),
        ("postgres://admin:S3cretPass@localhost/db", "postgres://[secret]@localhost/db"),
        ("myPassword=hunter2", "myPassword=[secret]"),
        ('password = "correct horse battery staple" ok', 'password = "[secret]" ok'),
        ("4111\u00a01111\u200b1111\u20111111", "[card]"),
        ("4111  1111  1111  1111", "[card]"),
        ("IBAN DE89\u00a03704\u00a00044\u00a00532\u00a00130\u00a000", "IBAN [iban]"),
        ("\uff0b48\u202f600 700 800", "[phone]"),
        ("ada\uff20example.com", "[email]"),
        ("card 4111.1111.1111.1111", "card [card]"),
        ("| Lee | 4111 | 1111 | 1111 | 1111 |", "| Lee | [card] |"),
        ("<td>4111</td><td>1111</td><td>1111</td><td>1111</td>", "<td>[card]</td>"),
        ("**4111** 1111 1111 1111", "**[card]"),
        (
            "\u06f4\u06f1\u06f1\u06f1 " + 3 * "\u06f1\u06f1\u06f1\u06f1 " + "\u06a9\u0627\u0631\u062a",
            "[card] \u06a9\u0627\u0631\u062a",
        ),
        ("IBAN DE89.3704.0044.0532.0130.00", "IBAN [iban]"),
        ("/reset?email=jane%40example.org&x=1", "/reset?email=[email]&x=1"),
        ("jane%2540example.org, jane&#64;example.org", "[email], [email]"),
        ('password: "p(4$\\"x"y, z" ok', 'password: "[secret]" ok'),
        ("password: p(4$\"x, 'y z  \nnext", "password: [secret]  \nnext"),
        ("password: |\n  line one\n  line two\nuser: x", "password: |\n  [secret]\nuser: x"),
        ('{"password": "hunter22", "password": ""}', '{"password": "[secret]", "password": ""}'),
        ("curl -u bob:hunter22 https://x.test", "curl -u [secret] https://x.test"),
        ("postgres://app:p/w:1@db/x and mail", "postgres://[secret]@db/x and mail"),
        (
            "kind: Secret\ndata:\n  user: YQ==\n  smtp: YjpjZA==\ntype: x",
            "kind: Secret\ndata:\n  user: [secret]\n  smtp: [secret]\ntype: x",
        ),
        ('{"auths": {"r.test": {"auth": "Ym9iOmh1bnRlcjIy"}}}', '{"auths": {"r.test": {"auth": "[secret]"}}}'),
        ("machine x login ci password hunter\n", "machine x login [secret] password [secret]\n"),
        ("\u5bc6\u7801\uff1asunshine", "\u5bc6\u7801\uff1a[secret]"),
        ("Has\u0142o: s\u0142o\u0144ce", "Has\u0142o: [secret]"),
        ("Mein Passwort lautet sonnenschein", "Mein Passwort lautet [secret]"),
        ("mysql -h db -P 3306 -u root -phunter2", "mysql -h db -P 3306 -u root -p[secret]"),
        ("redis-cli -h x -p 6379 -a hunter2", "redis-cli -h x -p 6379 -a [secret]"),
        ("unzip -P hunter2 a.zip", "unzip -P [secret] a.zip"),
        ("ldapsearch -x -w hunter2 -b x", "ldapsearch -x -w [secret] -b x"),
        ("--from-literal=smtp=hunter2", "--from-literal=smtp=[secret]"),
        ("app:hunter2@tcp(db:3306)/x", "app:[secret]@tcp(db:3306)/x"),
        ('password: str | None = "hunter2"', 'password: str | None = "[secret]"'),
        ("password: string = 'hunter2';", "password: string = '[secret]';"),
        ('char password[32] = "hunter2";', 'char password[32] = "[secret]";'),
        ("password: '''hunter2'''", "password: '''[secret]'''"),
        ("- name: DB_PASSWORD\n  value: hunter2\n", "- name: DB_PASSWORD\n  value: [secret]\n"),
        ('{"name": "password", "value": "hunter2"}', '{"name": "password", "value": "[secret]"}'),
        ("Password:\n\nsunflower\n", "Password:\n\n[secret]\n"),
        ("Password:\n```text\nsunflower\n```", "Password:\n```text\n[secret]\n```"),
        ("dbpass=hunter2 psk=x", "dbpass=[secret]"),
        ("psk=sunflower", "psk=[secret]"),
        ("| user | password |\n|:--|--:|\n| joe | sun 1 |\n", "| user | password |\n|:--|--:|\n| joe | [secret] |\n"),
        ("||User||Password||\n|joe|sunflower|\n", "||User||Password||\n|joe|[secret]|\n"),
        ("│ user │ password │\n├──┼──┤\n│ joe │ sunflower │", "│ user │ password │\n├──┼──┤\n│ joe │ [secret] │"),
        ('id,Password,url\n1,"sun,""1",x\n2,moon,y\n', 'id,Password,url\n1,"[secret]",x\n2,[secret],y\n'),
        ("Name;PIN\nMeier;4821\n", "Name;PIN\nMeier;[secret]\n"),
        ("USER  API_KEY  AGE\njoe   sun-flower  5\n", "USER  API_KEY  AGE\njoe   [secret]  5\n"),
        (
            "INSERT INTO u (id, password) VALUES\n(1, 'it''s, me'), (2, 'sunflower');",
            "INSERT INTO u (id, password) VALUES\n(1, '[secret]'), (2, '[secret]');",
        ),
        ("COPY u (id, password) FROM stdin;\n1\tsun\n\\.\n", "COPY u (id, password) FROM stdin;\n1\t[secret]\n\\.\n"),
        ("passwords:\n  - sun\n  - moon 2\nport: 5\n", "passwords:\n  - [secret]\nport: 5\n"),
        ("tokens: [alpha-9912, beta]\n", "tokens: [secret]\n"),
        ("db:5432:orders:app:sunflower\n", "db:5432:orders:app:[secret]\n"),
        ("PIN 4711, CVV: 893 and TAN 338812.", "PIN [secret], CVV: [secret] and TAN [secret]."),
        ('{"cvc": "737", "pin":1234}', '{"cvc": "[secret]", "pin":[secret]}'),
        ("El código de seguridad de la tarjeta es 771.", "El código de seguridad de la tarjeta es [secret]."),
        ("Backup codes: 8841-2213, 9917-0042", "Backup codes: [secret]"),
        ("482913 is your login code.", "[secret] is your login code."),
        ("echo 'sun flower' | sudo -S id", "echo '[secret]' | sudo -S id"),
        ("echo 'joe:sunflower' | chpasswd", "echo 'joe:[secret]' | chpasswd"),
        ("net user joe sunflower /add", "net user joe [secret] /add"),
        ("USER joe\n331 ok\nPASS sunflower\n", "USER joe\n331 ok\nPASS [secret]\n"),
        ("a1 LOGIN joe sunflower\n", "a1 LOGIN joe [secret]\n"),
        ("const s = process.env.JWT_SECRET || 'sun flower';", "const s = process.env.JWT_SECRET || '[secret]';"),
        ("login: joe / sunflower_4", "login: [secret]"),
        ("password = '''\nsun\nflower\n'''\n", "password = '''[secret]'''\n"),
        ("My password is Summer Rain 44. Please help.", "My password is [secret]"),
        ("PuTTY-User-Key-File-3: ssh-rsa\nAAAA\nPrivate-MAC: 00ff\nok", "[secret]\nok"),
    ],
)
def test_known_kinds_are_replaced(text: str, expected: str) -> None:
    assert Redactor(ALL).text(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        "Order 1234567890123456 has 12 items",  # no card: its check digit is wrong
        "The meeting is at 12:30 in room 4.2.1, version 1.2.3",
        "2026-11-26T16:17:32Z",
        "A secret is safe with me, and the token economy grows.",
        "x = [1, 2, 3]; y = {'a': 1}",
        "DE89 is a route, GB82WEST12345698765433 no account",
        "max_tokens: 100000, tokens = tokenizer.encode(text), tokens=usage.output_tokens",
        'token: string; eos_token="<|endoftext|>"; tokens: Vec<Token>; cancellationToken: CancellationToken',
        'password = getpass.getpass()\npassword: Optional[str]\napi_key = os.environ["X"]\ncredentials: "include"',
        "client_secret: str | None,\napi_key: Annotated[str, Meta(x)] = ...,\npassword: ${DB_PASSWORD}",
        "V1beta2ResourceClaimSpec, Wav2Vec2FeatureExtractor, PydanticDeprecatedSince29, Text2TextGenerationOutput",
        "The password is wrong. My password is not working. Das Passwort ist falsch. The API key was revoked.",
        "The token is invalid. The secret is knowing when. A private key is required. Basic understanding helps.",
        "sk-learn-some-thing-long-name, sk_estimator_pipeline_v2, pk_customer_id_index_v1",
        '{"usage": {"max_tokens": "100", "tokenizer": "bpe"}}',
        "0 0 0 0 0 0 0 0 0 0 0 0 0, 000000000000, 1 0 0 1 0 1 1 0 0 1 0 1 0",
        "Chrome/120.0.0.0, 127.0.0.1, 0.0.0.0, ::1, abc::def, face::dead, 00123456789",
        "password,user\n\ntext",
        "a, password, b\nThe next line, and more, of it. Enter your password, and go.",
        "| setting | default |\n|---|---|\n| port | 5432 |\n",
        "| Login | Password |\n|---|---|\n| web | yes |\n",
        "The PIN has 4 digits. Erlang/OTP 26 of 2023, pin_memory=1024, tan(45), status code 4040",
        "PASS src/app.test.js\nPASS\n",
        "net user /domain",
        "src/a.py:10:foo:bar:baz",
        "echo 'a b' | grep b",
        "| model | tokens |\n|---|---|\n| a | 1234567 |\n",
        "tokens: 123456\nstop_tokens: [50256, 50257]",
        "W@x.T + b, x@self.weight.T, lodash@4.17.21, @types/node@18.0.1, `@kopf.timer`",
    ],
)
def test_other_texts_stay(text: str) -> None:
    redactor = Redactor(ALL)
    assert redactor.text(text) == text
    assert redactor.redactions == 0


def test_only_the_kinds_of_the_policy_are_replaced() -> None:
    text = "jane@example.org, 4111111111111111"
    assert Redactor(Capture(redact=("email",))).text(text) == "[email], 4111111111111111"
    assert Redactor(Capture(redact=())).text(text) == text


def test_patterns_and_words_of_the_policy_are_replaced() -> None:
    capture = Capture(patterns=(Redaction(name="ticket", pattern=r"T-\d+"),), words=("Jane Doe", "Miller"))
    text = "T-12 is of JANE DOE, not of Jane or Millerton, but of Miller."
    assert Redactor(capture).text(text) == "[ticket] is of [word], not of Jane or Millerton, but of [word]."


@pytest.mark.parametrize(
    "name",
    [
        "Jos\u00e9 N\u00fa\u00f1ez",
        "Jose\u0301 Nu\u0301n\u0303ez",
        "JOS\u00c9\n N\u00da\u00d1EZ",
        "Jos\u00e9\u00a0N\u00fa\u00f1ez",
    ],
)
def test_words_are_found_in_every_form(name: str) -> None:
    assert Redactor(Capture(words=("Jos\u00e9 N\u00fa\u00f1ez",))).text(f"Hi {name}!") == "Hi [word]!"


@pytest.mark.parametrize("around", ["{}", "Arguments: {}", "[{}, 1]", "{{{}"])
def test_json_inside_a_text_is_redacted(around: str) -> None:
    """Escapes stand beside secrets, and inside them."""
    redactor = Redactor(Capture(words=("Jos\u00e9",)))
    secrets = ["+44 20 7946 0958", "DE89370400440532013000", "password: hunter2hunter2", "sk-a1B2c3D4e5F6g7H8i9"]
    secrets += ["Jos\u00e9", "2001:db8::1", "jane@example.org", "4111 1111 1111 1111"]
    text = around.format(json.dumps({"note": "Hello\n" + "\n".join(secrets) + "\n"}))
    found = redactor.text(text)
    assert redactor.redactions >= len(secrets)
    assert not any(secret in found or json.dumps(secret)[1:-1] in found for secret in secrets)


def test_values_of_secret_fields_are_replaced() -> None:
    data = {"password": "hunter2", "max_tokens": 5, "properties": {"token": {"type": "string"}}}
    assert Redactor(ALL).json(data) == {**data, "password": "[secret]"}


def test_own_patterns_apply_to_every_number() -> None:
    assert Redactor(Capture(patterns=(Redaction(name="id", pattern=r"\b\d{6}\b"),))).json([123456, 1234]) == [
        "[id]",
        1234,
    ]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("card 4111 1111 ", "1111 1111"),
        ("password=", "hunter2hunter2"),
        ("Ada", "Kowalska"),
        ("-----BEGIN PRIVATE KEY-----\nMIIEvQIB" + "A" * 500, "ADANBgkq\n-----END PRIVATE KEY-----"),
        ("key sk-a1B2c3D4e5F6g7", "h8I9j0K1l2M3n4"),
        ("my password: hunter1", "2secret99"),
        ("+48 600 700", " 800 now"),
    ],
)
def test_what_two_texts_make_together_is_replaced_in_both(one: str, other: str) -> None:
    redactor = Redactor(Capture(words=("Ada Kowalska",)))
    first, last = redactor.conversation([("user", one), ("user", other)])
    assert first != one or one.endswith("=")
    assert last != other
    if one != "Ada":
        begun, _, ended = redactor.conversation([("user", one), ("assistant", "Go on."), ("user", other)])
        assert (begun, ended) == (first, last)


def test_data_of_media_is_left_out() -> None:
    redactor = Redactor(ALL)
    assert redactor.text("see data:image/png;base64,AAAA/+=. Ok") == "see [data]. Ok"
    assert redactor.redactions == 1
    assert redactor.text("[data] \ufb01") == "[data] \ufb01"


def test_json_is_redacted_in_texts_names_and_numbers() -> None:
    redactor = Redactor(ALL)
    data = {"jane@example.org": [{"n": 4111111111111111, "ok": 12345}, None, True, 0.5]}
    assert redactor.json(data) == {"[email]": [{"n": "[card]", "ok": 12345}, None, True, 0.5]}
    assert redactor.redactions == 2


@pytest.mark.parametrize(
    "part", ["0123456789abcdef0123456789abcdef-", "password,\n", "password: a<a ", "a:b@tcp", "密码"]
)
def test_time_is_linear_in_the_length(part: str) -> None:
    """Less than a second; a quadratic search takes half a minute."""
    redactor, start_s = Redactor(ALL), time.process_time()
    redactor.text(part * (640_000 // len(part)))
    assert time.process_time() - start_s < 10


@given(st.text(max_size=200))
def test_every_text_can_be_redacted(text: str) -> None:
    Redactor(ALL).text(text)
