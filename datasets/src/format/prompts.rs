//! The prompt templates of every format: what is asked, and the same with instructions on how to answer.
//!
//! `question` says what is asked and nothing of how the answer is to be written: environments add that where it is
//! missing. `instruct` says it too, for models that are asked without an environment's help.

use super::Format;

/// A format's templates.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Prompts {
    /// The question alone.
    pub question: &'static str,
    /// The question, and what an answer must look like.
    pub instruct: &'static str,
    /// Whether `instruct` is what holds where nothing is said.
    pub instructs: bool,
}

impl Prompts {
    /// The template that holds where nothing is said.
    pub fn default(&self) -> &'static str {
        if self.instructs { self.instruct } else { self.question }
    }
}

impl Format {
    /// Its templates; `None` for records that are rows already.
    pub fn prompts(self) -> Option<Prompts> {
        let (question, instruct) = match self {
            Self::Rows | Self::Auto => return None,
            Self::Gsm8k => (QUESTION, GSM8K),
            Self::Math => (QUESTION, MATH),
            Self::Aime | Self::Dapo => (QUESTION, AIME),
            Self::HumanEval => (HUMANEVAL_QUESTION, HUMANEVAL),
            Self::Mbpp => (QUESTION, MBPP),
            Self::LiveCodeBench => (LCB_QUESTION, LCB),
            Self::Spider | Self::Bird | Self::Text2Sql => (SQL_QUESTION, SQL),
            Self::NqHotpot => (QUESTION, SEARCH),
            Self::MultiPaper => (PAPERS, PAPERS),
        };
        // The environment of these adds nothing of its own.
        let instructs = self == Self::LiveCodeBench;
        Some(Prompts { question, instruct, instructs })
    }
}

const QUESTION: &str = "{{ question }}";

const GSM8K: &str = "\
{{ question }}

Think step by step. Then give the final number alone on the last line, after `####`, like this: #### 7";

const MATH: &str = "\
{{ question }}

Reason step by step, and put your final answer in \\boxed{}.";

const AIME: &str = "\
Work through the following problem step by step. End with a line of the form `Answer: X`, where X is the answer to the \
problem and nothing else.

{{ question }}

Remember: the last line must be `Answer: ` followed by the answer.";

// The head stands first: it is the beginning of the program that is graded.
const HUMANEVAL_QUESTION: &str = "{{ head }}";

const HUMANEVAL: &str = "\
{{ head | trim }}

Complete the function above. Answer with one block of Python, fenced by ```python and ```, that holds the whole function \
and the imports it needs.";

const MBPP: &str = "\
{{ question }}

The code must pass these tests:

```python
{{ tests }}
```

Answer with one block of Python, fenced by ```python and ```, that holds the code and none of the tests.";

const LCB_QUESTION: &str = "\
{{ question | trim }}
{% if starter_code %}

Start from this code:

```python
{{ starter_code | trim }}
```
{% else %}

The program reads its input from stdin and writes its answer to stdout.
{% endif %}";

const LCB: &str = "\
You are an expert in Python. You are given a problem and write a program that solves it and passes every test.

{{ question | trim }}

### Format:
{% if starter_code %}
Write the solution from this starter code, within the fences.

```python
{{ starter_code | trim }}
```
{% else %}
Read the input from stdin, solve the problem, and write the answer to stdout; do not run the examples yourself. Put the \
program within the fences.

```python
# your program
```
{% endif %}

### Answer: (in the format above, with its fences)";

// The environment adds the schema of the database that it opens.
const SQL_QUESTION: &str = "\
{{ question }}
{% if knowledge %}

What the question takes for granted: {{ knowledge }}
{% endif %}";

const SQL: &str = "\
You are a data analyst who answers questions with SQLite queries, in several turns against the database.

Database schema:

{{ schema }}
{% if knowledge %}

What the question takes for granted: {{ knowledge }}
{% endif %}

Question: {{ question }}

How to work:
- Begin every turn with your reasoning within <think> and </think>.
- To try a query, write it within <sql> and </sql>. What it returns comes back within <observation> and </observation>; \
every observation is followed by new reasoning.
- Once you are sure, write the final query within <solution> and </solution>, once and with no other tag inside. It must \
be one SQLite query that returns what the question asks for, and nothing else.
- Your turns are few; give the solution before they run out.";

const SEARCH: &str = "\
Answer the question at the end. Reason within <think> and </think> first, and again after every piece of new \
information. Where knowledge is missing, ask a search engine by writing <search> query </search>; the best results come \
back within <information> and </information>. Search as often as you need. Once nothing is missing, give the answer \
within <answer> and </answer>, short and without an explanation, like this: <answer> Beijing </answer>.

Question: {{ question }}";

const PAPERS: &str = "\
Find the passages of the context that are evidence for this query: {{ question }}
Answer with a Python list of texts, each copied from the context word for word: nothing reworded, nothing added.";
