"""The main job: SSSL and KRR on 200,000 digits, with a report page."""
