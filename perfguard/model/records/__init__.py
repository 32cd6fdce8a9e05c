"""The data of each stage, as frozen structs. JSON, YAML and validation follow from the types (msgspec).

Times are in microseconds, memory is in bytes.
"""

from perfguard.model.records.baseline import Baseline, CaseBaseline, Entry, Hardware, Provenance, TimedEntry, Toolchain
from perfguard.model.records.case import (
    OTHER_CONDITIONS,
    Accuracy,
    Better,
    Case,
    CaseResult,
    Conditions,
    HardCounts,
    Parts,
    Pass,
    Positive,
    Reading,
    Throughput,
    Value,
    Verdict,
    Word,
)
from perfguard.model.records.pair import NO_BASE, BaseTree, PairedCase, PairedTime, Pairing, PairReading
from perfguard.model.records.report import SCHEMA, Report, Session, dump_report, load_report

__all__ = [
    "NO_BASE",
    "OTHER_CONDITIONS",
    "SCHEMA",
    "Accuracy",
    "BaseTree",
    "Baseline",
    "Better",
    "Case",
    "CaseBaseline",
    "CaseResult",
    "Conditions",
    "Entry",
    "HardCounts",
    "Hardware",
    "PairReading",
    "PairedCase",
    "PairedTime",
    "Pairing",
    "Parts",
    "Pass",
    "Positive",
    "Provenance",
    "Reading",
    "Report",
    "Session",
    "Throughput",
    "TimedEntry",
    "Toolchain",
    "Value",
    "Verdict",
    "Word",
    "dump_report",
    "load_report",
]
