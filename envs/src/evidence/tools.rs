//! The functions that the REPL has for papers. They are Python, in namespaces of their own: a call costs no host call
//! and copies nothing of the context out of the REPL.
//!
//! A search looks for the words as they are, without regard to case; where that finds nothing, without regard to
//! hyphens, spaces and punctuation; then with up to three edits, over a bounded number of characters and places. Under
//! compat it looks for the words as they are and for nothing else.

use espalier_sandbox::Tool;

use crate::rlm::RlmTool;

const SOURCE: &str = include_str!("tools.py");

/// Characters of a snippet around a hit, by default.
pub(super) const WINDOW: usize = 300;

/// Hits that a search shows, by default.
pub(super) const MOST: usize = 20;

const TOOLS: [(&str, &str); 4] = [
    ("list_papers", "list_papers(context): prints id, title and abstract of every paper, returns the titles"),
    (
        "search",
        "search(context_or_text, keyword, window=WINDOW, bidirectional=True): prints and returns numbered snippets around \
         every place where the keyword standsNEAR; a larger window gives longer snippets, bidirectional=False only what \
         follows",
    ),
    (
        "extract_section",
        "extract_section(snippet, start, end): prints and returns the part of a snippet from the words `start` through \
         the words `end`, letter by letter as it stands there",
    ),
    (
        "get_paper_abstract",
        "get_paper_abstract(context, paper_id): returns id, title and abstract of one paper as text",
    ),
];

/// The tools; `fuzzy` lets searches take near spellings.
pub(super) fn tools(fuzzy: bool, window: usize) -> Vec<RlmTool> {
    let head = format!(
        "FUZZY = {}\nWINDOW = {window}\nMOST = {}\n",
        if fuzzy { "True" } else { "False" },
        if fuzzy { MOST } else { 200 }
    );
    let near = if fuzzy { ", near spellings included where there is no exact one" } else { "" };
    TOOLS
        .iter()
        .map(|(name, description)| RlmTool {
            tool: Tool::Python {
                name: (*name).to_owned(),
                description: description.replace("WINDOW", &window.to_string()).replace("NEAR", near),
                source: format!("{head}{SOURCE}"),
            },
            serve: None,
        })
        .collect()
}
