"""Search over documents by BM25 (Robertson & Zaragoza 2009, "The Probabilistic Relevance Framework"), with the usual
k1 = 1.2 and b = 0.75, and the idf of Lucene, which is never negative."""

from __future__ import annotations

import heapq
import math
import re
from collections import Counter, defaultdict
from typing import Any

from engine.environments.files import Document

K1 = 1.2
B = 0.75
SHOWN_CHARACTERS = 1000
WORD = re.compile(r"\w+")


class Index:
    """An inverted index of documents: a search costs what the documents with a word of the query cost."""

    def __init__(self, documents: list[Document]) -> None:
        self.documents = documents
        self._postings: dict[str, list[tuple[int, int]]] = defaultdict(list)  # word -> (document, occurrences)
        self._lengths: list[int] = []
        for number, document in enumerate(documents):
            words = _words(f"{document.title} {document.text}")
            self._lengths.append(len(words))
            for word, count in Counter(words).items():
                self._postings[word].append((number, count))
        self._mean = sum(self._lengths) / len(documents) if documents else 0.0

    def search(self, query: str, count: int) -> list[tuple[float, Document]]:
        """The ``count`` best documents with their scores, best first; only such as have a word of the query."""
        scores: dict[int, float] = defaultdict(float)
        for word in dict.fromkeys(_words(query)):
            postings = self._postings.get(word, ())
            idf = math.log(1 + (len(self.documents) - len(postings) + 0.5) / (len(postings) + 0.5))
            for number, occurrences in postings:
                length = 1 - B + B * self._lengths[number] / self._mean
                scores[number] += idf * occurrences * (K1 + 1) / (occurrences + K1 * length)
        best = heapq.nsmallest(count, scores.items(), key=lambda item: (-item[1], item[0]))
        return [(score, self.documents[number]) for number, score in best]


class Search:
    """The tool. The job's documents are indexed once, a row's own for its episode."""

    name = "search"
    description = "Search the documents. Returns the parts that fit the query best."
    parameters = {
        "type": "object",
        "properties": {"query": {"type": "string", "description": "A few words."}},
        "required": ["query"],
    }

    def __init__(self, indexes: list[Index], results: int) -> None:
        self._indexes = indexes
        self._results = results

    async def call(self, arguments: dict[str, Any]) -> str:
        found = [hit for index in self._indexes for hit in index.search(arguments["query"], self._results)]
        # Scores of two indexes are near enough: both count words in documents of one kind.
        best = heapq.nlargest(self._results, found, key=lambda hit: hit[0])
        if not best:
            return "Nothing was found; try other words."
        return "\n\n".join(_shown(number, document, arguments["query"]) for number, (_, document) in enumerate(best, 1))


def _words(text: str) -> list[str]:
    return WORD.findall(text.lower())


def _shown(number: int, document: Document, query: str) -> str:
    """A document as the model sees it: of a long one the part around the first of the query's words found."""
    text = document.text
    if len(text) > SHOWN_CHARACTERS:
        places = [place for word in _words(query) if (place := text.lower().find(word)) >= 0]
        start = max(0, min(places, default=0) - SHOWN_CHARACTERS // 4)
        end = start + SHOWN_CHARACTERS
        text = ("..." if start else "") + text[start:end] + ("..." if end < len(text) else "")
    return f"[{number}] {document.title}\n{text}" if document.title else f"[{number}] {text}"
