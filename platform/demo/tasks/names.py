"""Names of people and cities for training, common ones first of all.

A name is often one token after a blank and several after a quote, so an answer in JSON or SQL
has to spell it.  The model spells unseen names well once it has practised on hundreds.
"""

from typing import Final

_FIRST_NAMES: Final = """
Ana,Ben,Clara,David,Elena,Farid,Grace,Hugo,Irene,Jonas,Karin,Liam,Maria,Nadia,Oscar,Paula,Rosa
Samuel,Tara,Victor,Yara,Omar,Julia,Peter,Mei,Ravi,Chloe,Marco,Aisha,Erik,James,Mary,John,Linda
Robert,Susan,Michael,Karen,William,Lisa,Richard,Nancy,Joseph,Sandra,Charles,Ashley,Daniel,Emily
Matthew,Donna,Anthony,Michelle,Mark,Carol,Paul,Amanda,Steven,Melissa,Andrew,Deborah,Kenneth
Stephanie,George,Rebecca,Joshua,Laura,Kevin,Sharon,Brian,Cynthia,Edward,Kathleen,Ronald,Amy
Timothy,Angela,Jason,Anna,Jeffrey,Pamela,Ryan,Nicole,Jacob,Samantha,Gary,Katherine,Nicholas
Christine,Eric,Helen,Jonathan,Rachel,Stephen,Carolyn,Larry,Janet,Justin,Catherine,Scott,Diane
Brandon,Heather,Frank,Teresa,Gregory,Julie,Raymond,Olivia,Alexander,Joyce,Patrick,Victoria,Jack
Kelly,Dennis,Christina,Jerry,Joan,Tyler,Evelyn,Aaron,Lauren,Henry,Judith,Nathan,Megan,Douglas
Andrea,Zachary,Cheryl,Walter,Hannah,Kyle,Jacqueline,Harold,Martha,Carl,Gloria,Arthur,Sophie
Roger,Alice,Keith,Sara,Jeremy,Judy,Lawrence,Isabella,Sean,Charlotte,Christian,Amber,Albert
Beatrice,Ivan,Ingrid,Pedro,Carmen,Luis,Pablo,Diego,Jorge,Miguel,Carlos,Juan,Fatima,Hassan,Ahmed
Ali,Leila,Yusuf,Kofi,Amina,Chen,Wei,Yuki,Hiroshi,Priya,Arjun,Anita,Sanjay,Olga,Dmitri,Tomas
Petra,Jana,Lukas,Simon,Stefan,Klaus,Greta,Astrid,Magnus,Sven,Nils,Pierre,Claire,Camille,Louis
"""

_LAST_NAMES: Final = """
Silva,Meyer,Rossi,Novak,Haddad,Jensen,Dubois,Garcia,Kowalski,Brown,Tanaka,Patel,Larsen,Moreau
Costa,Weber,Okafor,Walker,Bianchi,Horvat,Nguyen,Schmidt,Lopez,Fischer,Ivanov,Khan,Young,Smith
Johnson,Williams,Jones,Davis,Miller,Wilson,Moore,Taylor,Anderson,Thomas,Jackson,White,Harris
Thompson,Robinson,Lewis,Lee,Hall,Allen,King,Wright,Scott,Green,Baker,Adams,Nelson,Hill,Campbell
Mitchell,Roberts,Carter,Phillips,Evans,Turner,Parker,Collins,Edwards,Stewart,Morris,Murphy,Cook
Rogers,Morgan,Cooper,Peterson,Reed,Bailey,Bell,Kelly,Howard,Ward,Cox,Richardson,Wood,Watson
Brooks,Bennett,Gray,James,Hughes,Price,Myers,Long,Foster,Sanders,Ross,Powell,Sullivan,Russell
Ortiz,Jenkins,Perry,Butler,Barnes,Fisher,Henderson,Coleman,Simmons,Patterson,Jordan,Reynolds
Hamilton,Graham,Kim,Gonzalez,Rodriguez,Hernandez,Martinez,Perez,Sanchez,Ramirez,Torres,Flores
Rivera,Gomez,Diaz,Reyes,Cruz,Morales,Gutierrez,Ortega,Ramos,Ruiz,Alvarez,Castillo,Mendoza,Vargas
Muller,Schneider,Wagner,Hoffmann,Koch,Bauer,Richter,Klein,Wolf,Neumann,Schwarz,Zimmermann,Braun
Hansen,Olsen,Nilsson,Berg,Lindqvist,Virtanen,Bernard,Petit,Durand,Leroy,Simon,Laurent,Lefebvre
Ferrari,Russo,Esposito,Ricci,Marino,Greco,Conti,Gallo,Popov,Smirnov,Volkov,Singh,Kumar,Sharma
Gupta,Chen,Wang,Zhang,Suzuki,Sato,Yamamoto,Park,Choi,Hassan,Ahmed,Mensah,Diallo,Osei,Papadopoulos
"""

_CITIES: Final = """
Porto,Lyon,Berlin,Madrid,Oslo,Vienna,Prague,Dublin,Rome,Boston,Chicago,Athens,Warsaw,Geneva,Leeds
Toronto,Hamburg,Nice,Turin,Bergen,Krakow,Seville,Denver,Austin,Ghent,Malmo,Vilnius,Nantes,Genoa
Zagreb,Nairobi,Zadar,Bologna,Cologne,Nicosia,Salzburg,Plovdiv,Izmir,Cardiff,Utrecht,Malaga,Venice
Brussels,Marseille,Stuttgart,Tallinn,Helsinki,Milan,Kyoto,Quebec,London,Manchester,Liverpool
Glasgow,Edinburgh,Birmingham,Sheffield,Nottingham,Oxford,Cambridge,York,Bath,Brighton,Plymouth
Belfast,Cork,Galway,Amsterdam,Rotterdam,Antwerp,Bruges,Luxembourg,Frankfurt,Dresden,Leipzig,Bonn
Bremen,Hanover,Nuremberg,Zurich,Basel,Bern,Lausanne,Graz,Innsbruck,Naples,Florence,Verona,Palermo
Bari,Pisa,Barcelona,Granada,Bilbao,Cordoba,Faro,Braga,Coimbra,Bordeaux,Toulouse,Lille,Rennes
Strasbourg,Dijon,Cannes,Copenhagen,Aarhus,Stockholm,Uppsala,Gothenburg,Trondheim,Reykjavik,Riga
Kaunas,Gdansk,Wroclaw,Poznan,Brno,Bratislava,Budapest,Ljubljana,Belgrade,Sarajevo,Skopje,Tirana
Sofia,Bucharest,Istanbul,Ankara,Kiev,Minsk,Moscow,Kazan,Tbilisi,Yerevan,Baku,Beirut,Amman,Cairo
Tunis,Algiers,Casablanca,Dakar,Accra,Lagos,Abuja,Kampala,Kigali,Lusaka,Harare,Durban,Pretoria
Johannesburg,Dubai,Doha,Riyadh,Karachi,Lahore,Delhi,Mumbai,Chennai,Kolkata,Bangalore,Colombo
Dhaka,Kathmandu,Bangkok,Hanoi,Manila,Jakarta,Singapore,Taipei,Seoul,Busan,Tokyo,Osaka,Nagoya
Beijing,Shanghai,Nanjing,Sydney,Melbourne,Brisbane,Perth,Adelaide,Auckland,Wellington,Honolulu
Portland,Oakland,Sacramento,San Francisco,San Diego,Los Angeles,Las Vegas,Phoenix,Tucson,Dallas
Houston,Memphis,Nashville,Atlanta,Miami,Orlando,Tampa,Charlotte,Richmond,Baltimore,Philadelphia
Pittsburgh,Cleveland,Detroit,Milwaukee,Minneapolis,Omaha,Tulsa,Kansas City,New York,Buffalo,Albany
Montreal,Ottawa,Calgary,Edmonton,Vancouver,Winnipeg,Halifax,Havana,Bogota,Lima,Quito,Santiago
Paris,Lisbon,Munich,Bristol,Seattle,Washington,Cincinnati,Kingston,Leicester,Newcastle,Southampton
"""


def _listed(text: str) -> tuple[str, ...]:
    return tuple(text.strip().replace("\n", ",").split(","))


FIRST_NAMES: Final = _listed(_FIRST_NAMES)
LAST_NAMES: Final = _listed(_LAST_NAMES)
CITIES: Final = _listed(_CITIES)
