"""Reasons for contact, each with the customer's words, the summary's wording and the agent's actions.

The written forms (`issue`, `bullet`, `reply`) are fixed per reason, as in a contact centre with templates. The spoken
forms vary. Slots: {product} {order} {amount}.
"""

from __future__ import annotations

from dataclasses import dataclass

Category = str


@dataclass(frozen=True)
class Reason:
    label: str
    category: Category
    openings: tuple[str, ...]
    issue: str
    actions: tuple[tuple[str, str], ...]  # (the agent's words, the bullet in the summary)
    reply: str


def _reason(label: str, category: str, openings: str, issue: str, actions: tuple[str, ...], reply: str) -> Reason:
    pairs = tuple((spoken, bullet) for spoken, bullet in (action.split(" => ") for action in actions))
    return Reason(label, category, tuple(openings.split(" / ")), issue, pairs, reply)


_BILLING = (
    _reason(
        "Duplicate charge", "billing",
        "I was charged twice for my {product}. / There are two payments of {amount} on my card for one "
        "order. / "
        "You took the money for the {product} two times.",
        "The customer was charged twice for the same order and wants the second payment to be refunded.",
        ("I can see both payments here. => Confirmed both payments in the payment history of the account.",
         "I am reversing the second payment now. => Reversed the second payment to the original payment "
         "method.",
         "I will report this to our payment team. => Reported the double booking to the payment team."),
        "We have found the second payment and we are returning it to your original payment method.",
    ),
    _reason(
        "Missing refund", "billing",
        "I returned the {product} weeks ago and I still have no refund. / Where is my refund of {amount}? / "
        "My refund for the {product} has not arrived.",
        "The customer returned an item and has not received the refund within the promised time.",
        ("I see that the return arrived at our warehouse. => Confirmed that the return arrived at the "
         "warehouse.",
         "I am releasing the refund right now. => Released the refund to the original payment method.",
         "I will send you the refund receipt. => Sent the refund receipt to the customer by e-mail."),
        "Your return has arrived at our warehouse and the refund has now been released.",
    ),
    _reason(
        "Unexpected price increase", "billing",
        "My bill for the {product} suddenly went up. / Why do I pay {amount} more than last month? / "
        "Nobody told me that the price of my {product} would rise.",
        "The customer does not understand why the monthly price is higher than before.",
        ("Your discount ended last month. => Explained that the introductory discount has ended.",
         "I can give you the old price for six months. => Granted the previous price for another six months.",
         "I will send you a corrected bill. => Ordered a corrected bill for the current month."),
        "The introductory discount of your plan has ended, which is why the monthly price is higher than "
        "before.",
    ),
    _reason(
        "Failed payment", "billing",
        "My payment for the {product} does not go through. / My card is declined every time. / "
        "I try to pay {amount} and I get an error.",
        "The customer cannot complete a payment because the card is declined at the checkout.",
        ("I see that the bank rejected the payment. => Checked the rejection code that the bank returned.",
         "I am sending you a new payment link. => Sent a new payment link to the customer by e-mail.",
         "I have reserved the item for you. => Reserved the item until the payment is completed."),
        "The bank has rejected the payment, so we have created a new payment link for you.",
    ),
    _reason(
        "Invoice copy", "billing",
        "I need a copy of my invoice for the {product}. / I lost the invoice for {amount}. / "
        "Can you send me the invoice again?",
        "The customer needs another copy of an invoice for the accounting records.",
        ("I found the invoice in our archive. => Located the invoice in the archive of the account.",
         "I am sending it to your e-mail address. => Sent a copy of the invoice to the registered address.",
         "I turned on online invoices for you. => Activated online invoices for the customer account."),
        "We have located your invoice and attached a copy of it to this message.",
    ),
    _reason(
        "Wrong discount", "billing",
        "My voucher did not work for the {product}. / The discount of {amount} is missing on my bill. / "
        "You forgot my discount code.",
        "The customer used a valid discount code, but the discount is missing on the bill.",
        ("I checked the code and it is valid. => Confirmed that the discount code was valid on the order "
         "date.",
         "I am crediting the difference. => Credited the missing discount to the customer account.",
         "I will send you a corrected bill. => Ordered a corrected bill for the current month."),
        "Your discount code was valid and we have credited the missing discount to your account.",
    ),
)  # fmt: skip

_DELIVERY = (
    _reason(
        "Late delivery", "delivery",
        "My {product} should have been here days ago. / My order is late. / I am still waiting for my "
        "{product}.",
        "The customer has not received an order although the promised delivery date has passed.",
        ("I can see that the parcel is held at the depot. => Located the parcel at the depot of the carrier.",
         "I have asked the carrier to deliver it first thing. => Asked the carrier for a priority delivery.",
         "I will refund the shipping costs. => Refunded the shipping costs as an apology for the delay."),
        "Your parcel was held at the depot of the carrier and it is now on its way to you with priority.",
    ),
    _reason(
        "Damaged item", "delivery",
        "The {product} arrived broken. / The box was crushed and the {product} is damaged. / "
        "My new {product} has a big crack.",
        "The customer received a damaged item and asks for a replacement.",
        ("Please send us a photo of the damage. => Requested a photo of the damage for the claim.",
         "I am ordering a replacement for you. => Ordered a replacement at no cost to the customer.",
         "You will get a free return label. => Sent a free return label for the damaged item."),
        "We have ordered a replacement for the damaged item at no cost to you.",
    ),
    _reason(
        "Wrong item", "delivery",
        "I ordered a {product} and got something else. / You sent me the wrong item. / "
        "This is not the {product} that I ordered.",
        "The customer received a different item from the one that was ordered.",
        ("I compared the order with the packing list. => Compared the order with the packing list of the "
         "parcel.",
         "The right item leaves the warehouse today. => Arranged the shipment of the correct item for today.",
         "The courier picks up the wrong one. => Booked a free pick-up of the wrong item."),
        "The correct item leaves our warehouse today and the courier will pick up the wrong one.",
    ),
    _reason(
        "Lost parcel", "delivery",
        "The tracking says delivered, but there is no parcel. / My parcel is lost. / "
        "My {product} never arrived and the tracking has stopped.",
        "The parcel is marked as delivered, but the customer has not received it.",
        ("I have opened a search with the carrier. => Opened a search request with the carrier.",
         "I checked the delivery photo and address. => Checked the delivery photo and the address of the "
         "order.",
         "I am sending a new one today. => Arranged a new shipment of the order for today."),
        "We have opened a search request with the carrier and we will send the order again if it is not "
        "found.",
    ),
    _reason(
        "Change of delivery address", "delivery",
        "I have moved and my {product} goes to the old address. / Can you change the delivery address? / "
        "I typed the wrong street in my order.",
        "The customer wants an open order to be delivered to a different address.",
        ("I have the new address in the order now. => Updated the delivery address of the open order.",
         "I have informed the carrier too. => Informed the carrier about the new address.",
         "You will get a new confirmation. => Sent a new order confirmation to the customer."),
        "We have changed the delivery address of your open order and informed the carrier about it.",
    ),
    _reason(
        "Missing part", "delivery",
        "A part of my {product} is missing. / The {product} came without the power cable. / "
        "There were no screws in the box of the {product}.",
        "The customer received an order in which one part is missing.",
        ("I checked the list of parts with you. => Checked the list of parts together with the customer.",
         "I am sending the missing part today. => Ordered the missing part by express shipping.",
         "I will note this for our warehouse. => Reported the incomplete parcel to the warehouse."),
        "We have ordered the missing part for you and it will be sent by express shipping.",
    ),
)  # fmt: skip

_ACCOUNT = (
    _reason(
        "Locked account", "account",
        "I cannot log in, my account is locked. / The website says that my account is blocked. / "
        "I typed a wrong password too often and now I am locked out.",
        "The customer cannot log in because the account is locked after several wrong passwords.",
        ("I have unlocked your account. => Unlocked the account after the identity check.",
         "I am sending you a link for a new password. => Sent a link to set a new password.",
         "Please turn on the second factor. => Recommended two-step login for more security."),
        "We have unlocked your account and sent you a link with which you can set a new password.",
    ),
    _reason(
        "Change of bank details", "account",
        "I have a new bank account. / Please use another account for my {product} payments. / "
        "I need to change my bank details.",
        "The customer has a new bank account and wants future payments to be taken from it.",
        ("I entered the new bank details. => Entered the new bank details in the customer account.",
         "You will get a new mandate to sign. => Sent a new direct debit mandate for signature.",
         "The old details are deleted. => Deleted the old bank details from the account."),
        "We have entered your new bank details and future payments will be taken from the new account.",
    ),
    _reason(
        "Data deletion request", "account",
        "Please delete all my data. / I want you to remove my personal data. / "
        "I do not use my account any more and want it erased.",
        "The customer asks for the deletion of all personal data in line with data protection rules.",
        ("I have started the deletion. => Started the deletion process for the personal data.",
         "Invoices must be kept by law. => Explained which records must be kept by law.",
         "You will get a written confirmation. => Arranged a written confirmation of the deletion."),
        "We have started the deletion of your personal data, except for the records that must be kept by "
        "law.",
    ),
    _reason(
        "Suspected fraud", "account",
        "Somebody ordered a {product} with my account. / I see an order of {amount} that is not mine. / "
        "I think that my account was hacked.",
        "The customer reports an order that was placed by somebody else through the account.",
        ("I have blocked the account at once. => Blocked the account to prevent further orders.",
         "I have cancelled that order. => Cancelled the order that the customer does not recognise.",
         "Our security team will look into it. => Passed the case to the security team for review."),
        "We have blocked your account to protect you and cancelled the order that you do not recognise.",
    ),
)  # fmt: skip

_CONTRACT = (
    _reason(
        "Contract cancellation", "cancellation",
        "I want to cancel my {product}. / Please end my contract. / I do not need the {product} any more.",
        "The customer wants to cancel the contract at the next possible date.",
        ("I checked the notice period. => Checked the notice period and the end date of the contract.",
         "I could offer you a lower price. => Offered a lower price, which the customer declined.",
         "I have entered the cancellation. => Entered the cancellation at the end of the contract term."),
        "We have entered your cancellation and the contract will end at the next possible date.",
    ),
    _reason(
        "Contract renewal", "contract",
        "My contract for the {product} ends soon and I want to renew it. / I would like to extend my "
        "contract. / "
        "What do you offer if I stay for another year?",
        "The customer wants to renew the contract and asks for a good offer.",
        ("I have a loyalty offer for you. => Presented the loyalty offer for another year.",
         "I have added the discount. => Added the loyalty discount to the new contract.",
         "The new contract is in your mailbox. => Sent the new contract to the customer by e-mail."),
        "We have prepared the renewal of your contract with a loyalty discount for another year.",
    ),
    _reason(
        "Plan upgrade", "contract",
        "I want a bigger plan than my {product}. / Can I get the premium version? / "
        "My {product} is too small for us now.",
        "The customer wants to change to a larger plan because the current one is too small.",
        ("I compared the plans for you. => Compared the available plans with the customer.",
         "I have booked the larger plan. => Booked the larger plan with the same contract term.",
         "The upgrade is active from tomorrow. => Activated the upgrade for the following day."),
        "We have booked the larger plan for you and it keeps the term of your present contract.",
    ),
    _reason(
        "Change of name", "contract",
        "I got married and my name has changed. / Please change the name on my contract. / "
        "The name on my {product} contract is wrong.",
        "The customer asks for a change of the name on the contract.",
        ("Please upload a copy of the document. => Requested a copy of the official document.",
         "I have prepared the change. => Prepared the change of the name in the contract.",
         "You will receive new papers. => Ordered new contract papers in the new name."),
        "We have prepared the change of your name and we only need a copy of the official document.",
    ),
)  # fmt: skip

_TECHNICAL = (
    _reason(
        "Internet outage", "technical",
        "My internet has been down since this morning. / There is no connection at all. / "
        "The router only shows a red light.",
        "The customer has had no internet connection at home since this morning.",
        ("I ran a test of your line. => Ran a line test that showed a fault in the area.",
         "Please restart the router once. => Restarted the router together with the customer.",
         "I have opened a fault ticket. => Opened a fault ticket for the network team."),
        "There is a fault in your area and our network team is already working on it.",
    ),
    _reason(
        "App problem", "technical",
        "Your app closes every time I open it. / The app shows an error when I look at my {product}. / "
        "Since the update the app does not work.",
        "The app of the customer has not worked properly since the latest update.",
        ("Please reinstall the app. => Guided the customer through a new installation of the app.",
         "I cleared the session on our side. => Cleared the stored session of the account.",
         "I have reported it to the developers. => Reported the error to the app developers."),
        "The latest update of the app contains an error and our developers are preparing a correction.",
    ),
    _reason(
        "Device not working", "technical",
        "My {product} does not turn on. / The {product} stopped working after two weeks. / "
        "My {product} makes a strange noise and then shuts down.",
        "The device of the customer has stopped working and needs a repair or a replacement.",
        ("Let us do a reset of the device. => Guided the customer through a reset of the device.",
         "It is still under warranty. => Confirmed that the device is still under warranty.",
         "I have booked a repair for you. => Booked a free repair with the service partner."),
        "Your device is still under warranty and we have booked a free repair with our service partner.",
    ),
    _reason(
        "Warranty question", "warranty",
        "Is my {product} still under warranty? / How long is the warranty of the {product}? / "
        "I want to know if the warranty covers my {product}.",
        "The customer wants to know whether the warranty of the product is still valid.",
        ("I checked the date of purchase. => Checked the date of purchase and the warranty period.",
         "I explained what is covered. => Explained which defects the warranty covers.",
         "I am sending you the conditions. => Sent the warranty conditions by e-mail."),
        "The warranty of your product is still valid and covers all defects of material and production.",
    ),
    _reason(
        "Technician appointment", "technical",
        "I need another date for the technician. / The technician did not come. / "
        "I waited all day for the technician and nobody came.",
        "The customer needs a new appointment because the technician did not come.",
        ("I am sorry, the technician was ill. => Apologised for the missed appointment.",
         "I have booked a new slot in the morning. => Booked a new appointment with the technician.",
         "You get a message one hour before. => Activated a text message before the visit."),
        "We have booked a new appointment and the technician will call you one hour before the visit.",
    ),
    _reason(
        "Complaint about service", "feedback",
        "I want to complain about your colleague. / I have called five times and nobody helped me. / "
        "Your service is really bad.",
        "The customer complains about the quality of earlier contacts with the service team.",
        ("I apologise for that. => Apologised for the poor experience on behalf of the company.",
         "I have written down your complaint. => Recorded the complaint in the quality system.",
         "You get a voucher from us. => Issued a voucher as a gesture of goodwill."),
        "We have recorded your complaint in our quality system and we will use it to train our team.",
    ),
)  # fmt: skip

REASONS: tuple[Reason, ...] = (*_BILLING, *_DELIVERY, *_ACCOUNT, *_CONTRACT, *_TECHNICAL)
LABELS: tuple[str, ...] = tuple(sorted({reason.category for reason in REASONS}))
