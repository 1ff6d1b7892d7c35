"""Messages between two threads."""

from loraplex.engine.mailbox import Mailbox
from loraplex.engine.protocol import Abort


def test_news_is_what_came_since_messages_were_taken_even_if_requests_were_taken_beside() -> None:
    mailbox = Mailbox()
    assert not mailbox.has_news
    mailbox.put(Abort("a"))
    mailbox.take_submits()
    assert mailbox.has_news
    mailbox.take()
    assert not mailbox.has_news


def test_what_is_to_be_done_between_two_steps_is_news_until_all_of_it_is_taken() -> None:
    mailbox = Mailbox()
    mailbox.put_aside(lambda: None)
    mailbox.take()
    assert mailbox.has_news
    assert mailbox.take_aside() is not None
    assert not mailbox.has_news
