"""What there is to know in the pocket world (simulated): kinds, their attributes and the values these can take."""

from __future__ import annotations

KINDS = ("place", "work", "device", "species")

NOUNS = {"place": "town", "work": "novel", "device": "machine", "species": "animal"}

ATTRIBUTES: dict[str, tuple[str, ...]] = {
    "place": ("river", "founder", "craft", "dish", "month", "roofs"),
    "work": ("author", "setting", "hero", "year", "prize", "chapters"),
    "device": ("inventor", "material", "power", "purpose", "built", "museum"),
    "species": ("habitat", "food", "colour", "time", "describer", "enemy"),
}

PEOPLE = tuple(
    "Ada Brenn,Tobin Harle,Mira Solt,Jonas Quill,Edda Varn,Piet Lomas,Runa Fisk,Oskar Dell,Nell Tarrow,Ivo Marsh,"
    "Greta Holm,Silas Wren,Clara Voss,Hugo Pell,Lena Crane,Milo Thorne".split(",")
)
YEARS = tuple("1702 1718 1731 1745 1756 1763 1779 1784 1792 1807 1815 1826 1838 1849 1853 1861".split())
COLOURS = tuple("red blue green yellow black white grey brown orange purple pink silver".split())

POOLS: dict[str, tuple[str, ...]] = {
    "river": tuple(
        "Orvel Tamsin Brede Lunna Skarn Wesk Ilmen Dorra Pellis Varda Ness Quern Sorrel Arle Teth Mossa".split()
    ),
    "founder": PEOPLE,
    "craft": tuple(
        "ropes clocks bells carpets barrels kites candles violins tiles knives saddles pots mirrors baskets boots "
        "lanterns".split()
    ),
    "dish": tuple(
        "onion soup,plum pie,eel stew,barley cakes,goat cheese,smoked trout,rye dumplings,honey bread,pickled beets,"
        "lentil porridge,duck sausage,chestnut jam,turnip fritters,pear tart,nettle broth,roast goose".split(",")
    ),
    "month": tuple("January February March April May June July August September October November December".split()),
    "roofs": COLOURS,
    "author": PEOPLE,
    "setting": tuple(
        "a lighthouse,a monastery,a mining camp,a circus,a hospital,a harbour,a desert inn,a palace,a prison,a ship,"
        "a railway station,a vineyard,a school,a farm,a bakery,a theatre".split(",")
    ),
    "hero": tuple(
        "a clockmaker,a thief,a nurse,a shepherd,a judge,a sailor,a painter,a cook,a spy,a widow,a beekeeper,"
        "a soldier,a tailor,a printer,a gravedigger,a teacher".split(",")
    ),
    "year": YEARS,
    "prize": tuple(
        "Halden Corvin Amstel Lorne Bixby Tarn Everard Sable Pomfret Wick Juniper Ostrava Gale Merrow Finch "
        "Rook".split()
    ),
    "chapters": tuple("twelve fourteen fifteen eighteen twenty thirty forty fifty sixty seventy eighty ninety".split()),
    "inventor": PEOPLE,
    "material": tuple(
        "copper brass oak iron glass steel clay bamboo ivory tin marble leather wax zinc bronze cork".split()
    ),
    "power": tuple(
        "steam,wind,running water,a spring,hot air,sunlight,a hand crank,a falling weight,a magnet,burning oil,"
        "a treadmill,coal gas,alcohol,a battery,a pedal,the tides".split(",")
    ),
    "purpose": tuple(
        "measuring rain,sorting seeds,folding letters,tuning harps,counting coins,drying fruit,copying maps,"
        "grinding lenses,cutting hair,weighing gold,printing stamps,winding wool,peeling eggs,lifting stones,"
        "polishing shoes,mixing paint".split(",")
    ),
    "built": YEARS,
    "museum": tuple(
        "Almond House,Carver Hall,Dunmore Gallery,Elm Court,Fenwick Rooms,Garnet Tower,Hazel Lodge,Iris Hall,"
        "Jasper House,Kestrel Rooms,Linden Court,Maple Gallery,Nettle Lodge,Opal Tower,Pine House,Quarry Hall".split(
            ","
        )
    ),
    "habitat": tuple(
        "salt marshes,pine forests,limestone caves,river islands,sand dunes,peat bogs,mountain meadows,coral reefs,"
        "city parks,frozen lakes,orchards,bamboo groves,sea cliffs,hot springs,wheat fields,old ruins".split(",")
    ),
    "food": tuple(
        "beetles,clover,snails,moss,acorns,minnows,berries,spiders,mushrooms,pollen,worms,reeds,crickets,lichen,"
        "shrimps,thistles".split(",")
    ),
    "colour": COLOURS,
    "time": tuple(
        "at dawn,at dusk,at midnight,at noon,after rain,in thick fog,in moonlight,before storms,in snow,"
        "in deep shade".split(",")
    ),
    "describer": PEOPLE,
    "enemy": tuple(
        "owls foxes snakes pikes wolves eagles rats herons badgers otters weasels crows cats hawks bears toads".split()
    ),
}
