from tests.web.rows import REFUSED, Row, writers

PAGES = {"tour_history": Row(get=REFUSED, post=writers(302))}
