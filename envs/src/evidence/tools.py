import re

# FUZZY, WINDOW and MOST are bound by the host in front of this source.

BLOCK = 1 << 20        # characters that are looked through at once
FUZZY_CHARS = 20 << 20  # characters that a search with edits looks through
FUZZY_PLACES = 400     # places that it looks at closely


def _papers(context):
    if isinstance(context, dict):
        return [(str(key), value if isinstance(value, str) else str(value)) for key, value in context.items()]
    if isinstance(context, (list, tuple)):
        return [(str(index), value if isinstance(value, str) else str(value)) for index, value in enumerate(context)]
    return [("", context if isinstance(context, str) else str(context))]


def _title(text):
    line = text.lstrip().split("\n", 1)[0].strip()
    mark = "### PAPER:"
    if line[:len(mark)].upper() == mark:
        line = line[len(mark):].strip()
    return line[:300]


def _abstract(text):
    head = text[:20000]
    begin = head.find("<abstract>")
    if begin < 0:
        return ""
    begin += len("<abstract>")
    end = head.find("</abstract>", begin)
    return head[begin:end if end >= 0 else begin + 3000].strip()


def list_papers(context):
    papers = _papers(context)
    print(str(len(papers)) + (" paper" if len(papers) == 1 else " papers"))
    titles = []
    for key, text in papers:
        title = _title(text)
        titles.append(title)
        print("\n[" + key + "] " + title if key else "\n" + title)
        abstract = _abstract(text)
        if abstract:
            print(abstract)
    return titles


def get_paper_abstract(context, paper_id=None):
    papers = _papers(context)
    for key, text in papers:
        if paper_id is None or key == str(paper_id):
            abstract = _abstract(text) or "(no abstract)"
            return "Paper " + (key or "(the only one)") + "\nTitle: " + _title(text) + "\nAbstract: " + abstract
    known = ", ".join(repr(key) for key, _ in papers[:20])
    raise KeyError("no paper " + repr(paper_id) + "; there are " + known)


def _blocks(text):
    if len(text) <= 2 * BLOCK:
        return [text]
    blocks, block, size = [], [], 0
    for line in text.splitlines(True):
        block.append(line)
        size += len(line)
        if size >= BLOCK:
            blocks.append("".join(block))
            # A passage may lie across the end of a block.
            block = block[-3:]
            size = 0
    blocks.append("".join(block))
    return blocks


def _literal(text, word, most):
    low, folded = word.lower(), text.lower()
    if len(folded) != len(text) or len(low) != len(word):
        found = re.finditer(re.escape(word), text, re.IGNORECASE)
        return [hit.span() for _, hit in zip(range(most), found)]
    hits, at = [], folded.find(low)
    while at >= 0 and len(hits) < most:
        hits.append((at, at + len(low)))
        at = folded.find(low, at + len(low))
    return hits


def _loose_pattern(word):
    # Between the letters of a word a hyphenated line end, between words anything that is no letter.
    soft = "(?:[-\u00ad\u2010\u2011][ \t]*\n?[ \t]*)?"
    words = re.findall(r"[^\W_]+", word)
    if not words:
        return None
    return re.compile(r"[\W_]*".join(soft.join(re.escape(c) for c in part) for part in words), re.IGNORECASE)


def _edits(letters):
    return 0 if letters < 5 else 1 if letters < 10 else 2 if letters < 20 else 3


def _near(text, wanted, edits):
    """Where `wanted` (letters alone, lower case) stands in a short text, with so many edits: (edits, start, end)."""
    letters = [(c.lower(), at) for at, c in enumerate(text) if c.isalnum()]
    row = [(0, at) for at in range(len(letters) + 1)]
    for c in wanted:
        before, row = row, [(row[0][0] + 1, row[0][1])]
        for at, (given, _) in enumerate(letters):
            cost, start = before[at][0] + (given != c), before[at][1]
            if before[at + 1][0] + 1 < cost:
                cost, start = before[at + 1][0] + 1, before[at + 1][1]
            if row[at][0] + 1 < cost:
                cost, start = row[at][0] + 1, row[at][1]
            row.append((cost, start))
    cost, end = min((cell[0], at) for at, cell in enumerate(row))
    start = row[end][1]
    if cost > edits or start >= end:
        return None
    return cost, letters[start][1], letters[end - 1][1] + 1


def _fuzzy(text, word, most, spent):
    wanted = "".join(c.lower() for c in word if c.isalnum())[:200]
    edits = _edits(len(wanted))
    if edits == 0:
        return []
    # With so many edits one of this many pieces is intact.
    width = len(wanted) // (edits + 1)
    pieces = [wanted[at:at + width] for at in range(0, width * (edits + 1), width)]
    gap = r"[\W_]*" if " " in word.strip() else ""
    pattern = re.compile("|".join(gap.join(re.escape(c) for c in piece) for piece in pieces), re.IGNORECASE)
    hits, past, reach = [], 0, 2 * (len(wanted) + edits) + 16
    for hit in pattern.finditer(text):
        if hit.start() < past or len(hits) >= most:
            continue
        spent[1] += 1
        if spent[1] > FUZZY_PLACES:
            break
        low = max(0, hit.start() - reach)
        found = _near(text[low:hit.end() + reach], wanted, edits)
        if found:
            start, end = low + found[1], low + found[2]
            if not hits or start >= hits[-1][1]:
                hits.append((start, end))
                past = end
    return hits


def _snippet(text, start, end, window, bidirectional):
    half = window // 2
    left = max(0, start - half) if bidirectional else start
    right = min(len(text), end + (half if bidirectional else window))
    # Out to the sentence's or the line's end, where that is not further than the window again.
    floor, ceiling = max(0, left - window), min(len(text), right + window)
    before = max(text.rfind(". ", floor, left) + 2 if text.rfind(". ", floor, left) >= 0 else -1,
                 text.rfind("\n", floor, left) + 1 if text.rfind("\n", floor, left) >= 0 else -1)
    if bidirectional:
        left = before if before >= 0 else (0 if floor == 0 else left)
    ends = [at for at in (text.find(". ", right, ceiling), text.find("\n", right, ceiling)) if at >= 0]
    if ends:
        at = min(ends)
        right = at + 1 if text[at] == "." else at
    elif ceiling == len(text):
        right = ceiling
    else:
        # At least no word is cut in two.
        spaces = [at for at in (text.find(" ", right, right + 40), text.find("\n", right, right + 40)) if at >= 0]
        right = min(spaces) if spaces else right
    return text[left:right].strip()


def search(context, keyword, window=WINDOW, bidirectional=True, fuzzy=FUZZY, limit=MOST):
    if not isinstance(keyword, str) or not keyword.strip():
        raise ValueError("search() needs a keyword: a text that is not empty")
    window = max(0, min(int(window), 20000))
    limit = max(1, min(int(limit), 200))
    named = isinstance(context, (dict, list, tuple))
    papers = _papers(context)

    def look(find, most):
        found = []
        for key, text in papers:
            for block in _blocks(text):
                if len(found) >= most:
                    break
                for start, end in find(block, most - len(found)):
                    snippet = _snippet(block, start, end, window, bidirectional)
                    if not found or found[-1] != (key, snippet):
                        found.append((key, snippet))
        return found

    word = keyword if not fuzzy else keyword.strip()
    found = look(lambda block, most: _literal(block, word, most), limit)
    note = ""
    if not found and fuzzy:
        pattern = _loose_pattern(word)
        if pattern is not None:
            found = look(lambda block, most: [hit.span() for _, hit in zip(range(most), pattern.finditer(block))], limit)
        if not found:
            spent = [0, 0]

            def near(block, most):
                spent[0] += len(block)
                if spent[0] > FUZZY_CHARS or spent[1] > FUZZY_PLACES:
                    return []
                return _fuzzy(block, word, most, spent)

            found = look(near, limit)
            if spent[0] > FUZZY_CHARS or spent[1] > FUZZY_PLACES:
                note = " (not all of the text was searched for near spellings)"
        if found:
            print("No exact match for " + repr(keyword) + "; near ones" + note + ":")
    if not found:
        print("No match for " + repr(keyword) + note)
        return []
    titles = {key: _title(text) for key, text in papers} if named else {}
    last = None
    for number, (key, snippet) in enumerate(found, 1):
        if named and key != last:
            print("\n=== [" + key + "] " + titles[key] + " ===")
            last = key
        print("\n--- " + str(number) + " ---\n" + snippet)
    if len(found) >= limit:
        print("\n(the first " + str(limit) + "; there may be more: pass limit=...)")
    return [snippet for _, snippet in found]


def extract_section(snippet, start="", end=""):
    low = snippet.lower()
    if len(low) != len(snippet):
        low = snippet
        start, end = start.strip(), end.strip()
    else:
        start, end = start.strip().lower(), end.strip().lower()
    begin = low.find(start) if start else 0
    missing = []
    if begin < 0:
        missing.append("start")
        begin = 0
    stop = low.find(end, begin + len(start)) if end else -1
    if end and stop < 0:
        missing.append("end")
    stop = stop + len(end) if stop >= 0 else len(snippet)
    if missing:
        print("(not found: " + " and ".join(missing) + "; the section goes to the snippet's own edge there)")
    section = snippet[begin:stop]
    print(section)
    return section
