"""The words by which the rules know a task. Data only: weights are points of evidence, see `task`."""

from __future__ import annotations

from slipstream_gateway.types import TaskType

_S, _X, _C, _T = TaskType.SUMMARIZATION, TaskType.EXTRACTION, TaskType.CODE, TaskType.TRANSLATION
_L, _Q, _M = TaskType.CLASSIFICATION, TaskType.SHORT_QA, TaskType.MATH_REASONING
_W, _O, _R = TaskType.CREATIVE_WRITING, TaskType.OPEN_CHAT, TaskType.REWRITING

Weights = dict[str, tuple[TaskType, float]]


def _table(*groups: tuple[TaskType, float, str]) -> Weights:
    """`{word or two words: (task, points)}` from groups of comma-separated entries."""
    return {entry.strip(): (task, points) for task, points, entries in groups for entry in entries.split(",")}


def word_set(text: str) -> frozenset[str]:
    """The words of `text`, which has spaces between them."""
    return frozenset(text.split())


# Politeness and persons in front of the verb: "could you please", "i want you to".
FILLERS = word_set(
    "a an and as assistant can could do for given help i just kindly let like me my now ok okay please should so "
    "task that the then to us want we will would you your need job is bitte kannst du mir könnten sie por favor "
    "puedes sil vous plaît pouvez per also"
)

# First words of a sentence that command a task.
COMMANDS = _table(
    (_S, 3.0, "summarize,summarise,sum up,condense,recap,tldr,boil,summary,résume,résumez,zusammenfassen,fasse"),
    (_S, 3.0, "fassen,resume el,resume este,resumir,résumé,riassumi,samenvatten,кратко,resuma,sammanfatta"),
    (_S, 3.0, "call summary,document this,document the following,record this,record the following,crm entry"),
    (_S, 2.0, "digest,key points,main points,what happened in,what was said"),
    (_X, 3.0, "extract,pull out,pull,extrahiere,extrae,extrais,extrayez,estrai,identify all,find all,parse"),
    (_X, 2.0, "fill in,fill,list all,list every,list each,which contracts,what contracts,get the,retrieve"),
    (_X, 2.0, "detect all,what topics,what key,which organisations,which organizations,which people,map the"),
    (_X, 1.2, "identify,list the,find the,return the"),
    (_C, 3.0, "implement,debug,refactor,code,sql query,query,sql,python function,def,unit test,program"),
    (_T, 4.0, "translate,übersetze,übersetzen,traduce,traduis,traduisez,traduci,vertaal,traduza,переведи"),
    (_T, 4.0, "przetłumacz"),
    (_T, 4.0, "localize,localise,translation"),
    (_L, 3.0, "classify,categorize,categorise,label,tag,klassifiziere,clasifica,classifie,sentiment,rate the"),
    (_L, 2.5, "pick one,choose one,select one,decide whether,decide if,determine whether,determine if,assign"),
    (_L, 2.5, "is this"),
    (_L, 2.5, "tell me whether,route this,detect the,identify which,identify whether,which is,which are,is that"),
    (_L, 2.0, "which label,what label,which category,what category,which of,does the,pick,choose,pick exactly,sort"),
    (_L, 1.5, "select the,select,true or,does this"),
    (_Q, 1.6, "who,when,where,which,what is,what was,what are,what year,how many,how much,how long,how old,is"),
    (_Q, 1.6, "are,was"),
    (_Q, 1.4, "did,does,do,has,have,name,what,wer,wann,wo,qui,quand,où,quién,cuándo,dónde,quel,quelle,chi,has order"),
    (_Q, 1.6, "answer the,answer this,status,current status,whats,state of,whos,wheres,tell me,define"),
    (_Q, 1.6, "one-line status,short status,extract the answer,one sentence"),
    (_Q, 1.2, "question,based on,use information,using the,give the status,during which,fact"),
    (_M, 3.0, "solve,calculate,compute,evaluate,prove,simplify,integrate,differentiate,factor,berechne,calcula"),
    (_M, 1.5, "find the value,determine the value"),
    (_W, 2.5, "imagine,compose,invent,make up,pretend,brainstorm,continue the story,note for,hand-over note,you are"),
    (_W, 1.2, "write,draft,schreibe,escribe,écris,scrivi,create,generate,craft,come up,design,pen,tell my,brief my"),
    (_O, 2.2, "explain,describe,how to,how do,how can,how should,how does,how would,why,suggest,recommend,advise"),
    (_O, 2.0, "give tips,tips,what should,what are some,compare,discuss,plan,teach,erkläre,wie,explica,explique"),
    (_O, 1.8, "what can,what would,how could,how come,how is,how best,list some,provide,outline,elaborate"),
    (_O, 1.2, "hi,hello,hey,thanks,im,offer,list"),
    (_R, 3.0, "rewrite,rephrase,reword,paraphrase,proofread,edit,improve,polish,correct,fix grammar,reply to"),
    (_R, 3.0, "answer to"),
    (_R, 3.0, "respond to,answer this customer,answer the customer,umformulieren,reply,formuliere,reformule"),
    (_R, 3.0, "reescribe"),
    (_R, 3.0, "simplify this,fix the grammar,reformulate,what should we reply,how should we answer"),
    (_R, 2.0, "convert,transform,change,modify,turn,make it,make this,expand,shorten,make the following"),
)  # fmt: skip

# Words and pairs of words that speak for a task wherever they stand in the instruction.
MENTIONS = _table(
    (_S, 2.5, "tldr,summary,synopsis,zusammenfassung,resumen,résumé,recap,call summary,key takeaways,gist,digest"),
    (_S, 1.8, "summaries,summarize,summarise,abstract,main points,key points,main idea,nutshell,overview of"),
    (_S, 1.8, "in short"),
    (_S, 2.5, "crm entry,crm summary,crm notes,support call,service call,this call,following call,the crm"),
    (_X, 3.5, "as json,json object,only json,json record,json ticket,json format,with json,return json"),
    (_X, 3.5, "ticket fields"),
    (_X, 2.5, "json,schema,key value,structured data,named entities,key details,details on,key phrases,keywords"),
    (_X, 2.0, "following fields,each field,extract,entities,contract numbers,all contracts,the contract,order numbers"),
    (_X, 2.0, "list them"),
    (_X, 1.2, "fields,phone numbers,mentioned,as csv,as yaml,template,bullet list,all dates,all names,columns"),
    (_X, 1.2, "contracts"),
    (_X, 0.8, "names,amounts,dates,numbers,locations,terms,properties"),
    (_C, 2.4, "function,sql query,sql statement,sql,regex,script,algorithm,query that,snippet,python"),
    (_C, 2.4, "javascript,java"),
    (_C, 2.4, "c++,c#,typescript,golang,rust,html,css,bash,php,ruby,kotlin,swift,react,pandas,numpy,django"),
    (_C, 2.4, "macro,vba"),
    (_C, 2.4, "terraform,kubernetes,docker,laravel,flask,fastapi,scala,matlab,recursion,component that,shell script"),
    (_C, 2.0, "code,select,program,database,array,compile,bug,error message,stack trace,unit tests,linked list,api"),
    (_C, 2.0, "create table,this code,programm,node,loops,wget,git"),
    (_T, 2.5, "translate,translation"),
    (_L, 2.5, "classify,category,categories,sentiment,labels,label,positive or,negative or,spam or,one word,options"),
    (_L, 2.0, "true or,yes or,or no,one of,entailment,paraphrase or,following categories,intent,categorize,toxic"),
    (_L, 2.0, "choose from,or not,correct team,urgent or,a paraphrase,flattering or"),
    (_Q, 1.2, "question,answer,passage,one line,one-line,one sentence,context,status of,short answer"),
    (_Q, 1.2, "status for,trivia"),
    (_Q, 1.2, "nothing else,short status,order status"),
    (_M, 1.8, "equation,probability,percent,per hour,altogether,in total,remainder,triangle,integral,decimal places"),
    (_W, 2.2, "story,poem,essay,haiku,limerick,blog,song,lyrics,speech,novel,slogan,invitation,an email,an e-mail"),
    (_W, 2.2, "a letter,email to,e-mail to,letter to,an article,article about,a post,sonnet,gedicht"),
    (_W, 2.2, "geschichte,poème"),
    (_W, 2.0, "advertisement,tweet,caption,dialogue,screenplay,cuento,script for,monologue,cover letter,toast"),
    (_W, 2.0, "fairy tale,internal note,short note,informal note,brief note,hand-over note,note for,note to"),
    (_W, 2.0, "product description"),
    (_W, 2.0, "own words,plain words,job description,press release,metaphor,paragraph about,concepts together"),
    (_O, 1.2, "tips,advice,pros and,best way,difference between,step by,recommend,ideas,steps to,ways to,why,guide"),
    (_R, 2.5, "rewrite,rephrase,paraphrase,reply,the answer,grammar,passive voice,active voice,more formal"),
    (_R, 2.5, "phrasings"),
    (_R, 2.0, "politely,polite,customer message,formal tone,simpler,tone,proofread,spelling,past tense,reword"),
    (_R, 2.0, "friendlier,professional way,first person,third person,this e-mail,this customer"),
)  # fmt: skip

# The same for scripts without spaces between words: found anywhere in the prompt's ends.
MARKS_WITHOUT_SPACES = _table(
    (_S, 5.0, "总结,概括,要約,요약"),
    (_T, 5.0, "翻译,翻訳,번역"),
    (_X, 4.0, "提取,抽出,추출"),
    (_W, 3.0, "写一,写首,書いて,써줘"),
    (_L, 4.0, "分类,分類,분류"),
    (_C, 3.0, "代码,函数,コード,코드"),
)  # fmt: skip

CODE_MARKS = ("```", "def ", "import ", "#include", "function(", "();", "</", "select ", "public class", "=>")
MATH_MARKS = ("\\frac", "\\sum", "^2", "^3", "x²", " = ", "∠", "\\begin{")

# "into german", "in french", "a dutch version": what a translation is asked to be in.
LANGUAGES = word_set(
    "english german french spanish italian dutch portuguese polish swedish danish norwegian finnish russian ukrainian "
    "czech greek turkish arabic hebrew hindi bengali chinese mandarin japanese korean vietnamese thai indonesian "
    "romanian hungarian bulgarian croatian serbian deutsch englisch französisch spanisch español français"
)

# Verbs that command a text: what is written decides the task, so mentions in their sentence count more.
MAKERS = word_set(
    "write create generate give draft prepare make produce compose provide build develop craft need design turn "
    "schreibe erstelle escribe écris scrivi answer what how return convert get show read"
)

QUANTITY_QUESTIONS = ("how many", "how much", "how far", "how long", "how old", "altogether", "in total", "average")
