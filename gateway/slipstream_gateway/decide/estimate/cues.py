"""Words that open an instruction, in clients' most frequent languages; they separate a template from its material.

A missing word costs precision, never correctness: its requests share a coarser fingerprint.
"""

from __future__ import annotations


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


# Verbs and question words at the beginning of an instruction.
OPENERS = _words(
    """
    add adapt adjust analyse analyze annotate answer assess brief calculate categorise categorize change check choose
    classify clean come compare complete compose compress compute condense construct continue convert correct
    count create critique debug decide define describe design detect determine develop discuss distil distill document
    draft edit elaborate estimate evaluate expand explain extract fill find finish fix format formulate generate give
    grade group help highlight identify implement improve infer interpret label list look make map mark match mention
    modify name note optimise optimize organise organize outline paraphrase parse pick plan polish predict prepare
    print produce proofread propose prove provide pull rank rate read recap reformat refactor rephrase replace reply
    report respond restate return reverse review revise reword rewrite score select shorten show simplify solve sort
    specify split state suggest sum summarise summarize synthesise synthesize tag tell transcribe transform translate
    turn use verify write scan say remind put replace tidy
    what which who whom whose where when why how is are was were do does did has have can could should would will
    beantworte bestimme berechne beschreibe bewerte erkläre erstelle extrahiere fasse finde formuliere
    generiere gib klassifiziere korrigiere liste lies markiere nenne ordne prüfe schreib schreibe übersetze
    verfasse vergleiche verbessere wähle wandle was welche welcher welches wer wie wo wann warum zähle
    analyse classe classez corrige corrigez crée créez décris donne donnez explique expliquez extrais extrayez fais
    faites identifie liste listez quel quelle quels quelles que qui comment pourquoi où quand rédige rédigez résume
    résumez réponds traduis traduisez trouve trouvez écris écrivez
    analiza clasifica corrige crea cuál cuáles cómo describe dime escribe explica extrae genera haz identifica indica
    qué quién cuándo dónde redacta responde resume traduce
    analizza classifica correggi crea descrivi elenca estrai genera quale quali riassumi riscrivi rispondi scrivi
    spiega traduci trova
    beantwoord beschrijf classificeer corrigeer geef herschrijf noem schrijf vertaal welke
    classifique corrija crie descreva escreva explique extraia gere identifique liste qual quais resuma responda
    reescreva traduza
    """
)

# Words that may precede the opener: "please", "could you please", "I need", "I would like you to".
LEAD_INS = _words(
    """
    please kindly now then first next task instruction instructions i need want would like you to me us a an the my
    your just can could will bitte ich brauche möchte kannst können könnten sie du mir s'il vous plaît por favor
    """
)

# Elsewhere in a sentence they make an instruction likely, as in "SQL query, please" or "One-line status of order 7".
HINTS = _words(
    """
    please following below above given summary summaries translation query status note notes function label category
    json sql python sentence sentences bullet bullets words list table step steps short brief format one-line
    bitte folgenden folgende zusammenfassung satz sätze wörter suivant suivante siguiente seguente
    """
)

# "Task: translate ..." continues with the instruction; "Agent: have a nice day" does not.
TASK_LABELS = _words("task instruction instructions question q prompt request user query")

# Without meaning of their own: phrasings that differ only in them are one template.
FILLERS = _words("a an the this that these those please my your our")

# The words after these are a slot: "a story about *an autumn evening*", "a query that *counts visits per agent*".
SLOT_OPENERS = _words("about regarding concerning über sobre that which")

# Capitalised words that belong to a template rather than to its material.
PROPER = _words(
    """
    English German French Spanish Italian Dutch Portuguese Polish Turkish Arabic Chinese Japanese Korean Russian Hindi
    Swedish Danish Norwegian Finnish Czech Greek Ukrainian Python Java JavaScript TypeScript Rust Go Kotlin Swift Ruby
    Bash Markdown Yes No True False Text Transcript Context Question Answer Message Ticket Label Task Instructions
    Deutsch Englisch Französisch Spanisch Italienisch Englische Deutsche Französische Spanische
    """
)
