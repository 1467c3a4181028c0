"""Names of secrets in twenty languages, in small letters.

Four sorts: what a name of `PASSWORD` is given is always a secret, also without a sign between them; what a name of
`NAMED` is assigned is one; what stands after a name of `BARE` is one if it looks random; the digits after a name of
`CODE` are one.
"""

from __future__ import annotations

from enum import IntEnum


class Sort(IntEnum):
    CODE = 0
    BARE = 1
    NAMED = 2
    PASSWORD = 3


def _names(text: str) -> tuple[str, ...]:
    """Names between commas or line ends."""
    return tuple(name.strip() for line in text.splitlines() for name in line.split(",") if name.strip())


_PASSWORDS = _names("""
    password, passwd, passphrase, passcode, pass_phrase, pass phrase, pass word, recovery phrase, seed phrase
    dbpass, userpass, adminpass, rootpass, dbpwd, userpwd, adminpwd, dbpw
    identified by
    passwort, kennwort, losungswort
    mot de passe, phrase de passe, phrase secrète
    contraseña, contrasena, frase de contraseña
    senha, palavra-passe, palavra passe
    parola, parola d'ordine, frase segreta
    hasło, hasła, haslo
    wachtwoord
    şifre, şifrem, şifresi, sifre, sifrem, parolam, parolası, parolan
    salasana, adgangskode, lösenord, losenord, passord, heslo, jelszó, jelszo, parolă
    пароль, пароля, паролем, парольная фраза, кодовое слово
    密码, 密碼, 密码短语, 密碼短語, 口令
    パスワード, 暗証番号, 合言葉, パスフレーズ
    비밀번호, 비번, 암호
    รหัสผ่าน, पासवर्ड, סיסמה, סיסמא, kata sandi, mật khẩu, mat khau
    كلمة المرور, كلمة السر, رمز عبور, گذرواژه, پسورد
""")
# They stand alone: no letters before or after them.
_SHORT_PASSWORDS = _names("pass, pwd, pw, psw, pswd, mdp, psk")
_NAMED = _names("""
    secret, credential, sharedaccesskey, sharedaccesssignature, authorization, cookie, mnemonic, clientsecret
    session id, session_id, session-id, sessionid, jsessionid, phpsessid, connect.sid
    geheimnis, zugangsdaten, api-schlüssel, api schlüssel, geheimer schlüssel, privater schlüssel
    identifiants, clé api, clé d'api, clé secrète, clé privée
    credenciales, secreto, clave api, clave de api, clave secreta, clave privada
    segredo, chave de api, chave secreta
    credenziali, segreto, chiave api, chiave segreta
    sekret, klucz api, klucz prywatny
    geheim, api-sleutel, geheime sleutel
    api anahtarı, gizli anahtar
    секрет, ключ api, api-ключ, секретный ключ, закрытый ключ
    密钥, 密鑰, 金鑰, 秘钥, 令牌, 私钥, api密钥
    秘密鍵, シークレット, トークン, apiキー
    비밀키, 토큰, api 키, सीक्रेट, مفتاح api, کلید api
""")
_BARE = _names("""
    token, tokens, key, auth, sid, sess, session, login, logins, creds
    schlüssel, clé, clef, jeton, clave, llave, chave, chiave, klucz, sleutel, anahtar, anahtarım, kulcs, nyckel, avain
    ключ, токен, токеном, 鍵, キー, 키
""")
_SHORT_CODES = _names("pin, pins, puk, cvv, cvv2, cvc, cvc2, csc, tan, tans, mtan, pushtan, otp, totp, пин")
_CODES = _names("""
    security code, verification code, confirmation code, authentication code, one-time code, one time code, login code
    sms code, 2fa code, backup code, recovery code, pincode
    geheimzahl, prüfnummer, prüfziffer, sicherheitscode, bestätigungscode, verifizierungscode, einmalcode, sms-code
    code de sécurité, code de vérification, code de confirmation, code confidentiel, code secret, cryptogramme
    código de seguridad, código de verificación, código de confirmación, código de segurança, código de verificação
    codice di sicurezza, codice di verifica, kod weryfikacyjny, kod bezpieczeństwa, beveiligingscode, verificatiecode
    doğrulama kodu, güvenlik kodu, код подтверждения, код безопасности, пин-код
    验证码, 驗證碼, 安全码, 安全碼, 認証コード, 確認コード, セキュリティコード, 인증번호, 인증 코드, 보안 코드
    رمز التحقق, رمز الأمان, ओटीपी, पिन
""")
# `key` and `token` after one of these, with or without a sign between, are of the sort NAMED.
COMPOUNDS = _names("""
    api, access, private, secret, signing, encryption, account, master, auth, license, ssh, host, shared, preshared
    service, refresh, id, session, bearer, security, bot
""")
NAMES = {
    **dict.fromkeys((*_CODES, *_SHORT_CODES), Sort.CODE),
    **dict.fromkeys(_BARE, Sort.BARE),
    **dict.fromkeys(_NAMED, Sort.NAMED),
    **dict.fromkeys((*_PASSWORDS, *_SHORT_PASSWORDS), Sort.PASSWORD),
}
ASCII_NAMES = {name: sort for name, sort in NAMES.items() if name.isascii()}
SHORT = frozenset((*_SHORT_PASSWORDS, *_BARE, *_SHORT_CODES))
IS_WORDS = _names("""
    is, was, are, ist, war, sind, son, sono, são, lautet, lauten, heißt, est, sont, es, era, é, è, to, jest, это, är, on
    olarak, adalah, là, ialah, je, van, de
""")
# What a password is said to be without being shown.
STATES = frozenset(
    _names("""
    a, an, the, not, no, never, now, still, also, always, only, too, very, wrong, invalid, incorrect, correct, required
    needed, missing, empty, blank, expired, weak, strong, secure, safe, long, short, set, reset, changed, hashed
    encrypted, stored, sent, used, unknown, optional, mandatory, unique, case, at, in, on, of, by, for, and, or, that
    what, how, why, when, where, right, good, bad, okay, ok, different, valid, being, been, there, here, you, your, my
    their, his, her, its, this, these, it, i, we, they, one
    nicht, kein, falsch, richtig, ungültig, abgelaufen, leer, erforderlich, sicher, zu, sehr, das, der, die, ein, eine
    pas, invalide, expiré, vide, faux, requis, trop, le, la, un, une
    incorrecta, incorrecto, inválida, caducada, vacía, correcta, el, una, muy
    errata, non, scaduta, não, incorreta, nie, błędne, nieprawidłowe, не, неверный, неправильный
""")
)
