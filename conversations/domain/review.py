"""What reviewers say of sessions: the words that it takes."""

SAFETY, QUALITY, POLICY, PRIVACY, OTHER = "safety", "quality", "policy", "privacy", "other"

LABELS = {
    SAFETY: "Safety",
    QUALITY: "Quality",
    POLICY: "Policy",
    PRIVACY: "Privacy",
    OTHER: "Other",
}
"""What a flag is about → how it is said on a page."""

TEXT_LIMIT = 4000
"""Characters of a note, and of what is said with a flag."""
