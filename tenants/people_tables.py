"""Tables of people: who they are, what they may, and where they are signed in."""

from datetime import datetime

from sqlalchemy import CheckConstraint, ForeignKey, String, Text, UniqueConstraint
from sqlalchemy.orm import Mapped, mapped_column

from loraplex.tenants.columns import Base, UtcDateTime, one_of

PERSON_STATUSES = ("active", "disabled")
ROLES = ("owner", "operator", "finance", "tenant_admin", "developer", "read_only")


class PersonRow(Base):
    """Somebody who signs in to the console."""

    __tablename__ = "person"
    __table_args__ = (
        CheckConstraint(one_of("status", PERSON_STATUSES), name="status"),
        UniqueConstraint("email"),
        UniqueConstraint("oidc_issuer", "oidc_subject"),
    )

    id: Mapped[str] = mapped_column(String(40), primary_key=True)
    email: Mapped[str] = mapped_column(String(254))
    """In lower case."""
    name: Mapped[str] = mapped_column(String(100))
    status: Mapped[str] = mapped_column(String(16))
    password_hash: Mapped[str | None] = mapped_column(String(200))
    """By argon2id; None for who signs in elsewhere."""
    oidc_issuer: Mapped[str | None] = mapped_column(String(400))
    oidc_subject: Mapped[str | None] = mapped_column(String(255))
    created_at: Mapped[datetime] = mapped_column(UtcDateTime)
    signed_in_at: Mapped[datetime | None] = mapped_column(UtcDateTime)


class MembershipRow(Base):
    """What a person may, in one tenant or, without one, on the whole platform."""

    __tablename__ = "membership"
    __table_args__ = (CheckConstraint(one_of("role", ROLES), name="role"),)

    id: Mapped[str] = mapped_column(String(40), primary_key=True)
    person_id: Mapped[str] = mapped_column(ForeignKey("person.id"), index=True)
    tenant_id: Mapped[str | None] = mapped_column(ForeignKey("tenant.id"), index=True)
    role: Mapped[str] = mapped_column(String(16))
    is_by_rule: Mapped[bool] = mapped_column(default=False)
    """True if a rule gave it, by what the issuer says of the person, and takes it back."""
    created_at: Mapped[datetime] = mapped_column(UtcDateTime)


class ConsoleSession(Base):
    """One person, or the owner of an admin key, at one browser."""

    __tablename__ = "console_session"
    __table_args__ = (
        CheckConstraint("(person_id IS NULL) <> (admin_key_id IS NULL)", name="owner"),
    )

    cookie_hash: Mapped[str] = mapped_column(String(64), primary_key=True)
    """SHA-256 of the cookie, in hex."""
    person_id: Mapped[str | None] = mapped_column(ForeignKey("person.id"), index=True)
    admin_key_id: Mapped[str | None] = mapped_column(ForeignKey("admin_key.id"))
    csrf: Mapped[str] = mapped_column(String(64))
    user_agent: Mapped[str] = mapped_column(String(200))
    """What the browser calls itself, for whoever looks at their own sessions."""
    started_at: Mapped[datetime] = mapped_column(UtcDateTime)
    seen_at: Mapped[datetime] = mapped_column(UtcDateTime)
    ends_at: Mapped[datetime] = mapped_column(UtcDateTime)


class SignInState(Base):
    """What a sign-in elsewhere must find again when the person comes back."""

    __tablename__ = "sign_in_state"

    key: Mapped[str] = mapped_column(String(200), primary_key=True)
    data: Mapped[str] = mapped_column(Text)
    ends_at: Mapped[datetime] = mapped_column(UtcDateTime)
