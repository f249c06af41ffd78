"""Agreement of the math grader with math-verify on the answers of MATH, restyled and mutated.

usage: math_agreement.py PATH_TO_MATH_PAIRS MATH_JSONL [OUT_PREFIX] [--ours-only]
needs: math-verify (PyPI, 0.9.0) in the Python that runs it; math_pairs is `cargo build -p espalier-graders --example math_pairs`.

For each distinct answer (the last box of a solution) pairs are made: itself, restyled versions that must be equal, and
mutated versions that must not be. Every pair goes through both graders, math-verify in a process of its own with a time
limit per item. Writes OUT_PREFIX.txt (the summary: agreement with what is expected and with each other, per kind) and
OUT_PREFIX.jsonl (every pair on which the two differ or we differ from what is expected, with its class).
"""

import collections
import json
import multiprocessing
import re
import subprocess
import sys

LIMIT_S = 20


def boxed(text):
    at = max(text.rfind("\\boxed"), text.rfind("\\fbox"))
    start = at + (6 if text.startswith("\\boxed", at) else 5)
    if text[start] != "{":
        return re.match(r"\s*([^\s$.,]*)", text[start:]).group(1)
    depth = 0
    for i in range(start, len(text)):
        depth += (text[i] == "{") - (text[i] == "}")
        if depth == 0:
            return text[start + 1 : i]
    raise ValueError(text[at:])


INT = r"-?\d+"
FRAC = re.compile(r"(-?)\\[dtc]?frac\{(-?\d+)\}\{(\d+)\}")
NUMBER = re.compile(r"-?\d*\.?\d+")
SCALAR = re.compile(r"-?(\d+\.?\d*|\.\d+)")


def split_top(text, separator):
    parts, depth, last = [], 0, 0
    for i, c in enumerate(text):
        if c in "([{":
            depth += 1
        elif c in ")]}":
            depth -= 1
        elif c == separator and depth == 0:
            parts.append(text[last:i])
            last = i + 1
    parts.append(text[last:])
    return parts


def terminating(top, bottom):
    """The decimal digits of top/bottom (top not negative), where they end."""
    assert top >= 0
    rest = bottom
    for p in (2, 5):
        while rest % p == 0:
            rest //= p
    if top % bottom == 0 or rest != 1:
        return None
    places = next(n for n in range(1, 60) if 10**n % bottom == 0)
    digits = f"{top * 10**places // bottom:0{places + 1}d}"
    return f"{digits[:-places]}.{digits[-places:]}"


def restyled(a):
    """(kind, text) that say the same."""
    m = FRAC.fullmatch(a.strip())
    if "\\frac" in a:
        yield "dfrac", a.replace("\\frac", "\\dfrac")
        yield "tfrac", a.replace("\\frac", "\\tfrac")
    if m:
        sign, top, bottom = m.group(1), int(m.group(2)), int(m.group(3))
        yield "slash", f"{sign}{top}/{bottom}"
        yield "unreduced", f"{sign}\\frac{{{2 * top}}}{{{2 * bottom}}}"
        if terminating(top, bottom):
            yield "decimal", sign + terminating(top, bottom)
        if top < 10 and bottom < 10 and top > 0:
            yield "fracab", f"{sign}\\frac{top}{bottom}"
        if sign == "-":
            yield "negative_top", f"\\frac{{-{top}}}{{{bottom}}}"
        if abs(top) > bottom and top % bottom and sign == "" and top > 0:
            yield "mixed", f"{top // bottom}\\frac{{{top % bottom}}}{{{bottom}}}"
    if SCALAR.fullmatch(a):
        yield "equation", f"x={a}"
        yield "equation_spaced", f"x = {a}"
        yield "units", a + "\\text{ units}"
        yield "power_of_ten", f"{a} \\times 10^0"
        yield "braces", "{" + a + "}"
        if "." in a:
            yield "trailing_zero", a + "0"
            yield "leading_zero", a.replace("0.", ".", 1) if a.startswith("0.") else ("0" + a if a.startswith(".") else a + "00")
            whole, part = a.lstrip("-").split(".")
            yield "as_fraction", f"{'-' if a[0] == '-' else ''}\\frac{{{int(whole + part)}}}{{{10 ** len(part)}}}"
        else:
            yield "point_zero", a + ".0"
            if len(a.lstrip("-")) > 3:
                groups = f"{int(a):,}"
                yield "thousands", groups
                yield "thousands_braced", groups.replace(",", "{,}")
                yield "thousands_thin", groups.replace(",", "\\,")
    if ",\\!" in a:
        yield "no_separators", re.sub(r",\\!\s*", "", a)
        yield "plain_separators", re.sub(r",\\!\s*", ",", a)
    if re.search(r"[+=]", a) and "\\text" not in a:
        yield "spaces", re.sub(r"\s*([+=])\s*", r" \1 ", a)
        yield "no_spaces", re.sub(r"\s*([+=])\s*", r"\1", a)
    if re.fullmatch(r"[(\[].*[)\]]", a) and "\\left" not in a and a.count("(") + a.count("[") == 1:
        yield "left_right", "\\left" + a[:-1] + "\\right" + a[-1]
        yield "comma_spaces", re.sub(r"\s*,\s*", " , ", a)
    if "\\left" in a:
        yield "no_left_right", a.replace("\\left", "").replace("\\right", "")
    parts = split_top(a, ",")
    if len(parts) > 1 and "\\!" not in a and "text" not in a and not re.search(r"\d,\d{3}", a):
        yield "list_reversed", ", ".join(p.strip() for p in reversed(parts))
        yield "list_set", "\\{" + a + "\\}"
        yield "list_or", " \\text{ or } ".join(p.strip() for p in parts)
        yield "list_named", ", ".join("x = " + p.strip() for p in parts)
    terms = split_top(a, "+")
    if len(terms) > 1 and not re.search(r"[,=<>]|cup|text|in |pm|\.$", a):
        yield "sum_reversed", " + ".join(t.strip() for t in reversed(terms[1:])) + " + " + terms[0].strip()
    if re.search(r"\\text\s*\{\s*[a-z][^}]*\}|\\mbox\s*\{\s*[a-z][^}]*\}", a) and re.match(r"\s*[\d\\.-]", a) and "and" not in a and "m." not in a:
        bare = re.sub(r"(\\,|\\;|\s)*\\(text|mbox)\s*\{[^}]*\}(\^\d)?", "", a).strip()
        if bare:
            yield "no_unit", bare
    if "^\\circ" in a or "^{\\circ}" in a:
        yield "no_degrees", a.replace("^\\circ", "").replace("^{\\circ}", "") if "cos" not in a and "sin" not in a else a
    if a.endswith("\\%"):
        yield "no_percent", a[:-2]
        yield "plain_percent", a[:-2] + "%"
    if a.startswith("\\$"):
        yield "no_dollar", a[2:].strip()
        yield "dollar_word", a[2:].strip() + "\\text{ dollars}"
    m = re.fullmatch(r"(\d+)\s*\\sqrt\{(\d+)\}", a)
    if m:
        k, n = map(int, m.groups())
        yield "root_joined", f"\\sqrt{{{k * k * n}}}"
        yield "root_power", f"{k} \\cdot {n}^{{1/2}}"
        yield "root_plain", f"{k}*sqrt({n})"
    if re.search(r"\\sqrt\{\d\}", a):
        yield "root_unbraced", re.sub(r"\\sqrt\{(\d)\}", r"\\sqrt\1", a)
    m = re.fullmatch(r"\\frac\{(\d*)\\sqrt\{(\d+)\}\}\{(\d+)\}", a)
    if m:
        k, n, d = int(m.group(1) or 1), int(m.group(2)), int(m.group(3))
        yield "irrational_bottom", f"\\frac{{{k * n}}}{{{d}\\sqrt{{{n}}}}}"
    if "\\pi" in a and "\\cdot" not in a:
        yield "cdot_pi", re.sub(r"(\d)\s*\\pi", r"\1 \\cdot \\pi", a)
    m = re.fullmatch(r"\(-\\infty,\s*([^,()\[\]]+)([)\]])", a)
    if m:
        yield "as_inequality", "x " + ("<" if m.group(2) == ")" else "\\le") + " " + m.group(1)
    m = re.fullmatch(r"([(\[])([^,()\[\]]+),\s*\\infty\)", a)
    if m:
        yield "as_inequality", "x " + (">" if m.group(1) == "(" else "\\ge") + " " + m.group(2)
    if "pmatrix" in a:
        yield "bmatrix", a.replace("pmatrix", "bmatrix")
        yield "matrix_spaces", a.replace("\\\\", " \\\\ ").replace("&", " & ")
    m = re.fullmatch(r"\\text\{\(?([A-Z])\)?\}|\(?([A-Z])\)?|\(\\text\{([A-Z])\}\)", a)
    if m:
        letter = next(g for g in m.groups() if g)
        for kind, text in (("choice", letter), ("choice_brackets", f"({letter})"), ("choice_text", f"\\text{{{letter}}}"), ("choice_bold", f"\\textbf{{({letter})}}")):
            yield kind, text
    m = re.fullmatch(r"\\(?:text|mbox)\{([A-Za-z]{3,})\}", a)
    if m:
        yield "word_bare", m.group(1)
        yield "word_mathrm", f"\\mathrm{{{m.group(1)}}}"
        yield "word_lower", f"\\text{{{m.group(1).lower()}}}"
    m = re.fullmatch(r"([a-z]) ?= ?(.*)", a)
    if m:
        yield "value_alone", m.group(2)
        yield "flipped", f"{m.group(2)} = {m.group(1)}"
    if re.search(r"_\{?\d+\}?$", a):
        yield "base_braced", re.sub(r"_(\d+)$", r"_{\1}", a) if "{" not in a else re.sub(r"_\{(\d)\}$", r"_\1", a)
    m = re.fullmatch(r"(-?\d+)\s*\\frac\{(\d+)\}\{(\d+)\}", a)
    if m:
        w, t, b = map(int, m.groups())
        yield "improper", f"\\frac{{{w * b + (t if w > 0 else -t)}}}{{{b}}}"
    yield "dollars", f"${a}$"
    if re.fullmatch(r"[0-9a-z+\-^{}() ]*[a-z][0-9a-z+\-^{}() ]*", a) and not re.search(r"[a-z]{2}", a):
        yield from algebra(a)


def algebra(a):
    import sympy
    from latex2sympy2_extended import latex2sympy

    try:
        e = latex2sympy(a)
        if not isinstance(e, sympy.Expr) or "i" in a or "e" in a:
            return
        yield "expanded", sympy.latex(sympy.expand(e))
        yield "factored", sympy.latex(sympy.factor(e))
        yield "python", str(sympy.expand(e))
    except Exception:
        return


def mutated(a):
    """(kind, text) that say something else."""
    numbers = list(re.finditer(r"\d+", a))
    if numbers:
        for kind, m in (("digit_first", numbers[0]), ("digit_last", numbers[-1])):
            d = m.group(0)
            # A base, and the power of a counted thing, have kinds of their own.
            if a[: m.start()].endswith(("_", "_{", "}^")) and not a.endswith(")"):
                continue
            yield kind, a[: m.end() - 1] + str((int(d[-1]) + 1) % 10) + a[m.end() :] if d != "0" else a[: m.start()] + "7" + a[m.end() :]
        m = numbers[0]
        if not a[m.end() : m.end() + 1] in "._," and not re.search(r"_|frac ?(\d|\\)", a) and int(m.group(0)) > 0 and "text" not in a:
            yield "digit_added", a[: m.end()] + "1" + a[m.end() :]
    parts = split_top(a, ",")
    single = len(parts) == 1 and not re.search(r"text|mbox|=|<|cup|in |matrix|pm|^[(\[\\]\{?|_|[A-Z]", a)
    if single and numbers and a.strip("0.") != "":
        yield "sign", a[1:] if a.startswith("-") and not re.search(r"[+-]", a[1:]) else f"-({a})"
        yield "plus_one", f"{a} + 1"
    m = FRAC.fullmatch(a.strip())
    if m and m.group(2) != m.group(3) and m.group(2) != "0":
        yield "inverted", f"{m.group(1)}\\frac{{{m.group(3)}}}{{{m.group(2)}}}"
        yield "sign", a[1:] if a.startswith("-") else "-" + a.strip()
        if not terminating(int(m.group(2)), int(m.group(3))) and int(m.group(2)) % int(m.group(3)):
            yield "rounded", f"{int(m.group(1) + m.group(2)) / int(m.group(3)):.2f}"
    m = re.fullmatch(r"(\\left)?([(\[])(.*),(.*?)(\\right)?([)\]])", a)
    if m and m.group(3).strip() != m.group(4).strip() and "cup" not in a:
        l, o, x, y, r, c = m.group(1) or "", m.group(2), m.group(3), m.group(4), m.group(5) or "", m.group(6)
        if "infty" not in a:
            items = [part.strip() for part in m.group(3).split(",")] + [y.strip()]
            if items != items[::-1]:
                yield "swapped", f"{l}{o}{','.join(items[::-1])}{r}{c}"
        if "," not in x and "\\infty" not in x and ("infty" in y or "[" in a or "]" in a):
            yield "bound_type", f"{l}{'[' if o == '(' else '('}{x},{y}{r}{c}"
        if "," not in x and "\\infty" not in y and ("infty" in x or "[" in a or "]" in a):
            yield "bound_type", f"{l}{o}{x},{y}{r}{']' if c == ')' else ')'}"
    if "\\cup" in a:
        yield "union_dropped", a.split("\\cup")[0]
        yield "to_intersection", a.replace("\\cup", "\\cap", 1)
    if len(parts) > 1 and "\\!" not in a and not re.search(r"\d,\d{3}|text", a) and len({p.strip() for p in parts}) == len(parts):
        yield "element_dropped", ",".join(parts[1:])
        yield "element_added", a + ", 97"
    m = re.fullmatch(r"-?\d*\.\d+", a)
    if m:
        yield "point_moved", str(float(a) * 10)
    if re.search(r"\\sqrt\{(\d+)\}", a) and "sqrt{1}" not in a:
        yield "root_dropped", re.sub(r"\\sqrt\{(\d+)\}", r"(\1)", a, count=1)
    if "\\pi" in a and a != "\\pi":
        yield "pi_dropped", re.sub(r"\\pi", "1", a, count=1) if re.match(r"\\(frac\{)?\\?pi", a) else re.sub(r"\s*\\pi(?![a-z])", "", a, count=1)
        yield "pi_rounded", re.sub(r"\\pi(?![a-z])", "(3.14)", a)
    if re.search(r"(?<![a-z\\])x(?![a-z])", a) and "\\in" not in a:
        yield "renamed", re.sub(r"(?<![a-z\\])x(?![a-z])", "w", a)
    m = re.fullmatch(r"(.*)_\{?(\d+)\}?", a)
    if m:
        yield "other_base", f"{m.group(1)}_{{{int(m.group(2)) + 1}}}"
        yield "in_decimal", str(int(m.group(1).lstrip("-"), int(m.group(2)))) if re.fullmatch(r"[0-9A]+", m.group(1)) and int(m.group(2)) > 1 and int(m.group(1)[:9], int(m.group(2))) >= int(m.group(2)) else a.replace("_", "1_", 1)
    m = re.fullmatch(r"\\text\{\(?([A-Z])\)?\}|\(?([A-Z])\)?|\(\\text\{([A-Z])\}\)", a)
    if m:
        letter = next(g for g in m.groups() if g)
        yield "other_choice", chr(ord(letter) + 1)
    m = re.fullmatch(r"\\(?:text|mbox)\{([A-Za-z]{3,})\}", a)
    if m:
        yield "other_word", "\\text{" + m.group(1)[::-1] + "}"
        yield "longer_word", "\\text{" + m.group(1) + "s}"
    if "matrix" in a:
        body = re.search(r"\\begin\{pmatrix\}(.*)\\end", a, re.S).group(1)
        rows = [[c.strip() for c in r.split("&")] for r in body.split("\\\\")]
        columns = [list(c) for c in zip(*rows)]
        if columns != rows and len(columns[0]) == len(columns):
            yield "transposed", "\\begin{pmatrix}" + " \\\\ ".join(" & ".join(r) for r in columns) + "\\end{pmatrix}"
        elif rows != rows[::-1]:
            yield "rows_reversed", "\\begin{pmatrix}" + " \\\\ ".join(" & ".join(r) for r in rows[::-1]) + "\\end{pmatrix}"
    if "\\sin" in a or "\\cos" in a:
        yield "other_function", a.replace("\\sin", "\\tan").replace("\\cos", "\\tan")
    if "i" in re.sub(r"\\[a-z]+|text.*", "", a) and "text" not in a and len(parts) == 1:
        yield "conjugate", re.sub(r"(?<![a-z\\])i(?![a-z])", "(-i)", a)


# Pairs written by hand: (truth, answer). The first must be equal, the second must not.
HARD_EQUAL = [
    ('\\frac12', '0.5'),
    ('\\frac{1}{2}', '1/2'),
    ('3\\frac12', '3.5'),
    ('3 1/2', '7/2'),
    ('1,234', '1234'),
    ('1{,}234', '1234'),
    ('1\\,234', '1234'),
    ('10,\\!080', '10080'),
    ('(-\\infty,3]', 'x \\le 3'),
    ('(5,\\infty)', 'x>5'),
    ('x=5', '5'),
    ('5', '5 = x'),
    ('1,2', '2,1'),
    ('1,2', 'x=1 \\text{ or } x=2'),
    ('\\frac{\\sqrt3}{3}', '\\frac{1}{\\sqrt{3}}'),
    ('1\\pm\\sqrt{19}', '1-\\sqrt{19},1+\\sqrt{19}'),
    ('50\\%', '0.5'),
    ('50\\%', '50'),
    ('90^\\circ', '90'),
    ('90^\\circ', '\\pi/2'),
    ('\\text{(C)}', 'C'),
    ('C', '(C)'),
    ('\\text{Evelyn}', 'evelyn'),
    ('x^2+2x+1', '(x+1)^2'),
    ('y=2x+3', '2x - y + 3 = 0'),
    ('2x+3', 'y=2x+3'),
    ('1011_2', '1011'),
    ('1011_2', '1011_{2}'),
    ('\\cos 58^\\circ', '\\sin 32^\\circ'),
    ('2\\cos 15^{\\circ}', '\\frac{\\sqrt6+\\sqrt2}{2}'),
    ('\\sqrt{3+2\\sqrt2}', '1+\\sqrt2'),
    ('2^{10}', '1024'),
    ('10**3', '1000'),
    ('sqrt(8)', '2\\sqrt{2}'),
    ('\\frac{2x-7}{(x+1)(x-2)}', '\\frac{3}{x+1}-\\frac{1}{x-2}'),
    ('\\begin{pmatrix}1\\\\2\\end{pmatrix}', '\\begin{bmatrix}1\\\\2\\end{bmatrix}'),
    ('\\begin{pmatrix}1\\\\2\\end{pmatrix}', '(1,2)'),
    ('\\sin^2 x+\\cos^2 x', '1'),
    ('2\\tan x', '\\frac{2\\sin x}{\\cos x}'),
    ('e^{i\\pi/3}', '\\frac12+\\frac{\\sqrt3}{2}i'),
    ('1:2', '\\frac12'),
    ('1:2', '2:4'),
    ('\\{1,2\\}', '2,1'),
    ('(1,2)', '\\left( 1, 2\\right)'),
    ('-2 \\le x < 7', '[-2,7)'),
    ('x\\in[-2,7]', '[-2,7]'),
    ('\\mathbb{R}\\setminus\\{3,-1\\}', '(-\\infty,-1)\\cup(-1,3)\\cup(3,\\infty)'),
    ('\\frac{1}{2004!}', '\\frac{1}{2004\\cdot 2003!}'),
    ('\\binom{5}{2}', '10'),
    ('5!', '120'),
    ('\\log_2 8', '3'),
    ('\\ln e^2', '2'),
    ('\\log 100', '2'),
    ('\\$36', '36\\text{ dollars}'),
    ('\\$36', '$36$'),
    ('864 \\mbox{ inches}^2', '864'),
    ('864 \\mbox{ inches}^2', '864 in^2'),
    ('0.\\overline{3}', '1/3'),
    ('0.1\\overline{6}', '1/6'),
    ('1.5e3', '1500'),
    ('1.5\\times 10^3', '1500'),
    ('36x\\sqrt{35x}', '36\\sqrt{35}x^{3/2}'),
    ('3-2f(x)', '-2f(x)+3'),
    ('f(2)<f(1)<f(4)', 'f(4)>f(1)>f(2)'),
    ('\\text{1:03 PM}', '1:03 p.m.'),
    ('12\\text{ and }13', '13, 12'),
    ('7, -2, \\text{ and } -5', '-5,-2,7'),
    ('x^2+y^2=13', 'y^2 + x^2 - 13=0'),
    ('\\sqrt{x^2}', '|x|'),
    ('|3-\\pi|', '\\pi-3'),
    ('\\sqrt[3]{-8}', '-2'),
    ('(1+i)^2', '2i'),
    ('\\frac{1+i}{1-i}', 'i'),
    ('5x-7y+11z+4=0', '-10x+14y-22z=8'),
    ('\\frac{\\pi}{6}', '30^\\circ'),
    ('x > 3', '3 < x'),
    ('2x>6', '(3,\\infty)'),
    ('x<2 \\text{ or } x>3', '(-\\infty,2)\\cup(3,\\infty)'),
    ('\\text{A,D}', 'D,A'),
    ('k=15', '15'),
    ('\\sqrt{5+2\\sqrt{6}}', '\\sqrt2+\\sqrt3'),
    ('\\arctan 1', '\\pi/4'),
    ('$5$', '5'),
    ('5', '\\boxed{5}'),
    ('5', '$x = 5$'),
    ('2\\sqrt{3}', '2√3'),
    ('\\pi', 'π'),
    ('12\\pi', '12π'),
    ('x=1,y=2', '(1,2)'),
    ('3^{2007}', '3\\cdot 3^{2006}'),
    ('2^{n+1}', '2\\cdot 2^n'),
    ('18\\text{ ways.}', '18'),
    ('100\\text{ square units}', '100'),
    ('\\frac{1}{2},1,2', '{2, 1, 1/2}'),
    ('1,2,3', '3,2,1'),
    ('123,456', '123456'),
    ('100,200', '200, 100'),
    ('\\dfrac{3}{4}', '.75'),
    ('(x-1)(x+1)/(x-1)', 'x+1'),
    ('9^{9^{9^{9}}}', '9^{9^{9^9}}+0'),
    ('90\\text{ degrees}', '90^\\circ'),
    ('x \\ne 3', '(-\\infty,3)\\cup(3,\\infty)'),
    ('\\sqrt{2}+\\sqrt{3}', '\\sqrt3+\\sqrt 2'),
    ('\\text{east}', 'East'),
    ('9\\text{ a.m.}', '9 AM'),
    ('10000_2', '10000_{\\text{two}}'),
    ('\\frac{1}{x^2-1}', '\\frac{1}{(x-1)(x+1)}'),
    ('7p+4e', '4e+7p'),
    ('\\overline{CD}', '\\overline{CD} '),
    ('-1<x<1', '(-1,1)'),
    ('3(x-2)(x+1)', '3x^2-3x-6'),
    ('6\\sqrt{3}', '\\sqrt{108}'),
    ('5\\text{ cm}', '5 cm'),
    ('a^3 + a^2', 'a^2(a+1)'),
    ('\\frac{1}{1+\\sqrt2}', '\\sqrt2-1'),
    ('\\sqrt[3]{54}', '3\\sqrt[3]{2}'),
    ('|3+4i|', '5'),
    ('\\sin 18^\\circ', '\\frac{\\sqrt5-1}{4}'),
    ('\\frac{x^2-1}{x-1}', 'x+1'),
    ('\\sin 2x', '2\\sin x\\cos x'),
    ('\\{1\\pm\\sqrt{5},-2\\}', '-2, 1-\\sqrt5, 1+\\sqrt5'),
    ('AB = 5', '5'),
    ('9 \\cdot 2 = 18', '18'),
    ('5x-7y+11z+4=0', '-10x+14y-22z=8'),
    ('8\\sqrt{3} \\text { square inches}', '8\\sqrt3'),
    ('x \\in (2,3]', '2 < x \\le 3'),
    ('(3,4)', '\\begin{pmatrix}3\\\\4\\end{pmatrix}'),
    ('1.0\\times10^{-3}', '0.001'),
    ('\\frac{22}{7}', '3\\frac{1}{7}'),
    ('\\sqrt{-4}', '2i'),
    ('(-1)^{1/3}', '-1'),
    ('\\tan 45^\\circ', '1'),
    ('e^{\\ln 5}', '5'),
    ('\\log_{4} 2', '\\frac12'),
    ('2^{-3}', '0.125'),
    ('\\text{Monday}', 'monday'),
    ('-\\frac{3}{4}', '-.75'),
    ('3:2', '6:4'),
    ('n(n+1)/2', '\\frac{n^2+n}{2}'),
    ('\\binom{10}{3}', '120'),
    ('4!', '24'),
    ('\\lfloor \\pi \\rfloor', '3'),
    ('\\frac{\\pi}{180}\\cdot 90', '\\pi/2'),
    ('12\\%', '0.12'),
]
HARD_DIFFERENT = [
    ('1', '2'),
    ('(1,2)', '(2,1)'),
    ('(1,2)', '[1,2)'),
    ('[1,2]', '(1,2)'),
    ('x=5', 'y=5'),
    ('\\sqrt2', '1.41421356'),
    ('1/3', '0.3333'),
    ('even', 'neve'),
    ('\\text{even}', 'odd'),
    ('MAKE', 'KAME'),
    ('9\\text{ a.m.}', '9 p.m.'),
    ('5\\text{ cm}', '5\\text{ m}'),
    ('1358', '2516_8'),
    ('2516_8', '1358'),
    ('x^2', 'x^3'),
    ('\\sin x', '\\cos x'),
    ('|x|', 'x'),
    ('2\\cos 15^\\circ', '1.9318516525781366'),
    ('x>5', 'x\\ge 5'),
    ('(5,\\infty)', '[5,\\infty)'),
    ('10\\pi', '31.4'),
    ('10\\pi', '10'),
    ('50\\%', '5'),
    ('1,2', '1,3'),
    ('1,2', '1'),
    ('x=1,y=2', '2,1'),
    ('3', '\\boxed{'),
    ('C', 'D'),
    ('\\frac{1}{2}', '\\frac{1}{0}'),
    ('5', '5!'),
    ('2x=10', '10'),
    ('120', '5 + 1 2 0'),
    ('-5', '5'),
    ('12', '1,2'),
    ('1011_2', '1011_3'),
    ('\\text{Evelyn}', 'Dana'),
    ('i', '-i'),
    ('e', '2.718281828459045'),
    ('x+y', 'x-y'),
    ('2^{2005}', '2^{2006}'),
    ('f(2) < f(1) < f(4)', 'f(1)<f(2)<f(4)'),
    ('y=2x+3', 'y=2x-3'),
    ('1:2', '2:1'),
    ('\\{1,2\\}', '(1,2)'),
    ('\\sqrt{2}+\\sqrt{3}', '\\sqrt5'),
    ('(x+1)^2', 'x^2+1'),
    ('(-\\infty,2)\\cup(3,\\infty)', '(-\\infty,2)'),
    ('x^2+y^2=13', '13'),
    ('5\\text{ cm}', '5\\text{ cm}^2'),
    ('\\frac{22}{7}', '\\pi'),
    ('0.333', '\\frac13'),
    ('3.14', '\\pi'),
    ('1000', '1{,}00'),
    ('\\sin x', '\\sin y'),
    ('[1,2)', '[1,2]'),
    ('\\text{A}', '\\text{B}'),
    ('(A)', '(B)'),
    ('2^{n}', '2^{n+1}'),
    ('x=3', 'x>3'),
    ('\\{1,2,3\\}', '\\{1,2\\}'),
    ('-3', '|-3|'),
    ('\\sqrt{16}', '-4'),
    ('\\pm 2', '2'),
    ('4', '\\pm 4'),
    ('1', '0.999999'),
    ('1', '0.9999999'),
    ('10^{20}', '10^{20}+1'),
    ('\\frac{1}{7}', '0.142857'),
    ('\\log 2', '\\log 3'),
    ('\\text{yes}', '\\text{no}'),
    ('True', 'False'),
    ('\\infty', '-\\infty'),
]


def pairs(answers):
    made = {}
    for a in answers:
        made.setdefault((a, a), ("self", True))
        for kind, b in restyled(a):
            made.setdefault((a, b), (kind, True))
        for kind, b in mutated(a):
            made.setdefault((a, b), (kind, False))
    for expected, by_hand in ((True, HARD_EQUAL), (False, HARD_DIFFERENT)):
        for a, b in by_hand:
            made.setdefault((a, b), ("hard", expected))
    return [(a, b, kind, expected) for (a, b), (kind, expected) in made.items()]


def ours(binary, items):
    text = "".join(json.dumps({"a": a, "b": b}) + "\n" for a, b, *_ in items)
    done = subprocess.run([binary], input=text, capture_output=True, text=True, check=True, timeout=600)
    return [json.loads(line) for line in done.stdout.splitlines()]


def verifier(pipe):
    import logging

    from math_verify import parse, verify

    logging.disable(logging.CRITICAL)
    while True:
        a, b = pipe.recv()
        try:
            pipe.send(bool(verify(parse(f"\\boxed{{{a}}}"), parse(f"So the answer is \\boxed{{{b}}}."))))
        except Exception as error:
            pipe.send(f"error: {type(error).__name__}")


def theirs(items):
    def start():
        here, there = multiprocessing.Pipe()
        process = multiprocessing.Process(target=verifier, args=(there,), daemon=True)
        process.start()
        return here, process

    pipe, process = start()
    results = []
    for i, (a, b, *_) in enumerate(items):
        pipe.send((a, b))
        if pipe.poll(LIMIT_S):
            results.append(pipe.recv())
        else:
            process.kill()
            process.join()
            results.append("hang")
            pipe, process = start()
        if i % 2000 == 0:
            print(f"{i} of {len(items)}", file=sys.stderr, flush=True)
    process.kill()
    process.join()
    return results


def main():
    arguments = [a for a in sys.argv[1:] if not a.startswith("--")]
    binary, data = arguments[:2]
    out = arguments[2] if len(arguments) > 2 else None
    with open(data) as lines:
        answers = [boxed(json.loads(line)["solution"]) for line in lines]
    items = pairs(answers)
    mine = ours(binary, items)
    peer = [None] * len(items) if "--ours-only" in sys.argv else theirs(items)
    table = collections.defaultdict(collections.Counter)
    differences = []
    for (a, b, kind, expected), m, p in zip(items, mine, peer, strict=True):
        row = table[(not expected, kind)]
        row["pairs"] += 1
        row["ours"] += m["equal"] == expected
        row["peer"] += p == expected
        row["agree"] += m["equal"] == p
        row["hangs"] += p == "hang"
        if m["equal"] != expected or (p is not None and p != m["equal"]):
            side = "ours" if m["equal"] != expected else "peer"
            differences.append({"class": f"{kind}: {side} {'rejects' if expected else 'accepts'}", "a": a, "b": b, "ours": m["equal"], "note": m["note"], "peer": p})
    total = collections.Counter()
    report = [f"answers: {len(answers)}, distinct: {len(set(answers))}, pairs: {len(items)}"]
    report.append(f"{'kind':20} {'expected':9} {'pairs':>6} {'ours':>6} {'peer':>6} {'agree':>6} {'hangs':>6}")
    for (different, kind), row in sorted(table.items()):
        total.update(row)
        report.append(f"{kind:20} {'different' if different else 'equal':9} {row['pairs']:6} {row['ours']:6} {row['peer']:6} {row['agree']:6} {row['hangs']:6}")
    report.append(f"{'all':20} {'':9} {total['pairs']:6} {total['ours']:6} {total['peer']:6} {total['agree']:6} {total['hangs']:6}")
    report.append(f"largest cost: {max(m['steps'] for m in mine)} steps")
    classes = collections.Counter(d["class"] for d in differences)
    report.append("classes of difference:")
    report += [f"  {count:5} {name}" for name, count in sorted(classes.items(), key=lambda c: (-c[1], c[0]))]
    print("\n".join(report))
    if out:
        with open(out + ".txt", "w") as file:
            file.write("\n".join(report) + "\n")
        with open(out + ".jsonl", "w") as file:
            for d in sorted(differences, key=lambda d: (d["class"], d["a"], d["b"])):
                file.write(json.dumps(d, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
